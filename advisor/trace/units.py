"""FSDP units of a traced model, and when each of them runs.

A unit is what one `fully_shard` call wraps: each repeated block of the model, and the root with everything else. One
unit's parameters are gathered and its gradients reduced together.
"""

from __future__ import annotations

from dataclasses import dataclass

from advisor.trace.records import Phase, StepTrace

_MODEL_PHASES = frozenset({Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE})


@dataclass(frozen=True, slots=True)
class Unit:
    """Modules whose parameters are gathered and reduced as one."""

    name: str  # fully qualified name of the block; "" is the root
    parameters: tuple[int, ...]  # indices in StepTrace.parameters; the root may have none


@dataclass(frozen=True, slots=True)
class Span:
    """Operators `start` to `end - 1` hold one forward or one backward (with recomputation) of a unit."""

    unit: int  # index in what `fsdp_units` gave
    is_steady: bool  # of the steady step, not of the first
    microbatch: int  # as in OpRecord
    is_backward: bool
    start: int
    end: int


def fsdp_units(trace: StepTrace) -> tuple[Unit, ...]:
    """The root, then each repeated block that owns parameters, as the trace names them.

    A parameter that operators outside its block read too (a tied embedding) belongs to the root: a block's parameters
    are only there while the block runs.
    """
    blocks = [name for chain in trace.block_chains for name in chain.names]
    owner = _Owner(blocks)
    used_elsewhere = _read_outside(trace, owner)
    members: dict[str, list[int]] = {name: [] for name in ("", *blocks)}
    for index, parameter in enumerate(trace.parameters):
        members["" if parameter.storage in used_elsewhere else owner(parameter.name)].append(index)
    return tuple(Unit(name, tuple(indices)) for name, indices in members.items() if indices or not name)


def unit_spans(trace: StepTrace, units: tuple[Unit, ...]) -> tuple[Span, ...]:
    """First and last operator of each unit in each micro-batch of both steps; the root's spans hold all the others."""
    index_of = {unit.name: index for index, unit in enumerate(units)}
    owner = _Owner([unit.name for unit in units if unit.name])
    bounds: dict[tuple[int, bool, int, bool], list[int]] = {}
    running: tuple[str, Phase, int] | None = None  # neighbours mostly run in one module: look up where it changes
    open_bounds: list[list[int]] = []
    for position, op in enumerate((*trace.ops, None)):
        here = None if op is None or op.phase not in _MODEL_PHASES else (op.module, op.phase, op.microbatch)
        if here == running:
            continue
        for bound in open_bounds:
            bound[1] = position
        running, open_bounds = here, []
        if here is not None:
            when = (position >= trace.steady_start, here[2], here[1] is not Phase.FORWARD)
            open_bounds = [bounds.setdefault((u, *when), [position, 0]) for u in {0, index_of[owner(here[0])]}]
    return tuple(Span(*key, *bound) for key, bound in bounds.items())


class _Owner:
    """Name of the block a fully qualified name lies in; "" where it lies in none. The innermost one wins."""

    def __init__(self, blocks: list[str]) -> None:
        self._blocks = frozenset(blocks)
        self._known: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        if name not in self._known:
            prefix = name
            while prefix and prefix not in self._blocks:
                prefix = prefix.rpartition(".")[0]
            self._known[name] = prefix
        return self._known[name]


def _read_outside(trace: StepTrace, owner: _Owner) -> set[int]:
    """Storages of parameters that a forward operator of another block, or of none, reads."""
    home = {parameter.storage: owner(parameter.name) for parameter in trace.parameters}
    outside: set[int] = set()
    for op in trace.ops[: trace.steady_start]:
        if op.phase is Phase.FORWARD and op.microbatch == 0:
            here = owner(op.module)
            outside.update(ref.storage for ref in op.inputs if home.get(ref.storage, here) != here)
    return outside
