"""What `fully_shard` (FSDP2) makes of a step: shards, buffers and collectives, in the order of its hooks.

Source: torch 2.13.0, torch/distributed/fsdp/_fully_shard/{_fsdp_param_group,_fsdp_collectives,_fsdp_state}.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from advisor.hardware.mesh import Mesh
from advisor.parallel.base.strategy import data_parallel_notes, why_not_data_parallel
from advisor.trace.edit import Mark, TraceEditor
from advisor.trace.records import Category, OpRecord, ParameterRecord, Phase, StepTrace, StorageRecord, TensorRef
from advisor.trace.shard import shard_numel, shard_op, shard_states
from advisor.trace.units import Span, Unit, fsdp_units, unit_spans
from advisor.units import dtype_bytes

_FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FullyShardPolicy:
    """How `fully_shard` is called, and what the training loop switches between micro-batches."""

    reshard_after_forward: bool  # of the blocks; the root stays gathered, which is the default of fully_shard
    keep_gathered: bool = False  # set_reshard_after_backward(False) until the last micro-batch
    reduce_once: bool = False  # set_requires_gradient_sync(False) until the last: gradients accumulate unsharded


def why_not_fully_shard(trace: StepTrace, mesh: Mesh, axes: tuple[str, ...]) -> str | None:
    """Reasons that hold for each strategy that calls `fully_shard`."""
    if (reason := why_not_data_parallel(trace, mesh, axes)) is not None:
        return reason
    if scalar := next((p.name for p in trace.parameters if not p.shape), None):
        return f"fully_shard doesn't support scalar parameters: make {scalar} a 1D tensor with one element"
    for unit in fsdp_units(trace):
        dtypes = {trace.parameters[i].dtype for i in unit.parameters if trace.parameters[i].requires_grad}
        if len(dtypes) > 1:
            where = f"block {unit.name}" if unit.name else "the root"
            found = ", ".join(sorted(dtypes))
            return f"fully_shard expects one dtype for the trained parameters of {where}, found {found}"
    for op in trace.steady_ops():
        if op.phase is Phase.OPTIMIZER and op.flops and op.inputs[0].shape[-1:] != (1,):
            return f"the optimizer multiplies whole matrices ({op.name}), and a rank only holds a part of each"
    return None


def fully_shard(trace: StepTrace, mesh: Mesh, policy: FullyShardPolicy) -> StepTrace:
    """The step of the rank with the largest shards, over `mesh.dp_shard`, replicated over `mesh.dp_replicate`.

    Parameters are gathered in the autocast dtype, or in their own where there is no autocast; gradients are reduced in
    the parameter's own dtype (`MixedPrecisionPolicy(param_dtype=..., reduce_dtype=...)`).

    Known limitations: copies into the gather buffer, the barrier of gradient clipping (a few bytes) and
    `shard_placement_fn` are left out.
    """
    editor = TraceEditor(trace)
    shard_states(editor, mesh.dp_shard)
    hooks = _Hooks(editor, mesh, policy)
    _drop_weight_casts(editor)
    hooks.take_over_gradients()
    hooks.run()
    return editor.finish(notes=data_parallel_notes(trace))


def fully_shard_snippet(mesh: Mesh, axes: tuple[str, ...], *, reshard: bool, loop: Iterable[str] = ()) -> str:
    """Code of today's torch (2.11 to 2.14); `loop`: what to call before each backward."""
    degrees = "".join(f"{mesh.degree(axis)}, " for axis in axes).rstrip()
    names = "".join(f'"{axis}", ' for axis in axes).rstrip()
    lines = [
        "from torch.distributed.device_mesh import init_device_mesh",
        "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard",
        "",
        f'mesh = init_device_mesh("cuda", ({degrees}), mesh_dim_names=({names}))',
        "# param_dtype: the autocast dtype, or None without autocast; reduce_dtype: the parameters' own dtype",
        "policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype)",
        "for block in blocks:  # the repeated blocks of the model, children before parents",
        f"    fully_shard(block, mesh=mesh, reshard_after_forward={reshard}, mp_policy=policy)",
        "fully_shard(model, mesh=mesh, mp_policy=policy)  # the root stays gathered after forward",
        "optimizer = make_optimizer(model)  # after sharding: it must see the shards",
    ]
    if calls := list(loop):
        lines += ["for index, batch in enumerate(micro_batches):", "    is_last = index == len(micro_batches) - 1"]
        lines += [f"    {call}" for call in calls]
        lines += ["    (compute_loss(model, batch) / len(micro_batches)).backward()"]
    return "\n".join(lines) + "\n"


def _drop_weight_casts(editor: TraceEditor) -> None:
    """Autocast casts no weight: `fully_shard` gathers them in the compute dtype."""
    trace = editor.trace
    weights = {parameter.storage for parameter in trace.parameters}
    for position, op in enumerate(trace.ops):
        if op.name.startswith("aten._to_copy") and op.inputs[0].storage in weights:
            source, result = op.inputs[0], op.outputs[0]
            if result.dtype == trace.autocast_dtype and result.numel == source.numel:
                editor.drop(position)
                editor.forget(result.storage)


class _Hooks:
    """FSDP2's hooks in the order in which they fire: pre- and post-forward, pre- and post-backward of each unit.

    Forward: a unit's gather buffer lives until the next unit has copied out of its own: up to three times the largest
    unit. Backward: the gather of the unit before runs during a unit's backward; one reduce-scatter input is alive at a
    time.
    """

    def __init__(self, editor: TraceEditor, mesh: Mesh, policy: FullyShardPolicy) -> None:
        trace = editor.trace
        self.editor, self.trace, self.mesh, self.policy = editor, trace, mesh, policy
        self.units = fsdp_units(trace)
        self.spans = unit_spans(trace, self.units)
        self.gathered_bytes = [sum(self._compute_bytes(p) for p in self._members(unit)) for unit in self.units]
        self.reduced_bytes = [
            sum(self._padded(p) * dtype_bytes(p.dtype) for p in self._members(unit) if p.requires_grad)
            for unit in self.units
        ]
        self._order: dict[tuple[bool, int], list[int]] = {}
        for span in sorted(self.spans, key=lambda s: (s.start, s.unit)):
            if not span.is_backward:
                self._order.setdefault((span.is_steady, span.microbatch), []).append(span.unit)
        self._goes_back = {(s.is_steady, s.microbatch, s.unit) for s in self.spans if s.is_backward}
        self._unsharded: dict[tuple[bool, int, int], int] = {}  # (steady, micro-batch, parameter) -> gradient
        self._sharded: dict[tuple[bool, int], int] = {}  # (steady, parameter) -> gradient
        self._accumulated: dict[int, int] = {}  # parameter -> unsharded gradient
        self._starts: list[Mark] = []  # of this forward's units
        self._gathered: dict[int, int] = {}  # unit -> its parameters
        self._prefetched: dict[int, tuple[int, int]] = {}  # unit -> (gather buffer, collective)
        self._last_output = -1  # gather buffer of the unit before
        self._reducing: tuple[int, int] | None = None  # (reduce-scatter input, collective)
        self._all_reduces: list[int] = []

    def run(self) -> None:
        fired = [(s.start, 1, bool(s.unit), s) for s in self.spans] + [(s.end, 0, not s.unit, s) for s in self.spans]
        for _, is_pre, _, span in sorted(fired, key=lambda hook: hook[:3]):
            if span.is_backward:
                (self._pre_backward if is_pre else self._post_backward)(span)
            else:
                (self._pre_forward if is_pre else self._post_forward)(span)

    # ---- sizes ---------------------------------------------------------------------------------------------------

    def _members(self, unit: Unit) -> Iterable[ParameterRecord]:
        return (self.trace.parameters[index] for index in unit.parameters)

    def _padded(self, parameter: ParameterRecord) -> int:
        return shard_numel(parameter, self.mesh.dp_shard) * self.mesh.dp_shard

    def _compute_dtype(self, parameter: ParameterRecord) -> str:
        return (self.trace.autocast_dtype if parameter.dtype in _FLOATS else None) or parameter.dtype

    def _compute_bytes(self, parameter: ParameterRecord) -> int:
        return self._padded(parameter) * dtype_bytes(self._compute_dtype(parameter))

    def _is_last(self, span: Span) -> bool:
        return span.microbatch == min(self.trace.num_microbatches - 1, 1)

    def _reshards(self, span: Span) -> bool:
        """Whether a unit is resharded right after its backward.

        The last micro-batch also stands for those between, which keep everything while they reduce.
        """
        stands_for_others = self.trace.num_microbatches > 2 and not self.policy.reduce_once
        return not self.policy.keep_gathered or (self._is_last(span) and not stands_for_others)

    # ---- gradients -----------------------------------------------------------------------------------------------

    def take_over_gradients(self) -> None:
        """What backward makes lives unsharded until the unit reduces it; what the optimizer reads comes then."""
        trace, editor = self.trace, self.editor
        for storage, record in enumerate(trace.storages):
            position = editor.alloc_position[storage]
            if record.category is not Category.GRADIENT or record.parameter < 0 or position < 0:
                continue
            is_steady = position >= trace.steady_start
            self._sharded[is_steady, record.parameter] = storage
            parameter = trace.parameters[record.parameter]
            if (made := self._cast_source(storage)) is None:
                numel_bytes = parameter.numel * dtype_bytes(self._compute_dtype(parameter))
                made = editor.add_storage(StorageRecord(numel_bytes, Category.GRADIENT, record.module, False))
                editor.alloc(made, position)
            self._own(made, record.parameter, (is_steady, 0))
        parameter_of = {storage: parameter for (_, parameter), storage in self._sharded.items()}
        for position, op in enumerate(trace.ops):
            if not op.microbatch or op.phase is not Phase.BACKWARD or not op.name.startswith("aten.add_."):
                continue
            if (index := parameter_of.get(op.inputs[0].storage)) is not None:
                self._take_over_addend(position, op, index)

    def _take_over_addend(self, position: int, op: OpRecord, parameter: int) -> None:
        addend = op.inputs[1].storage
        made = self._cast_source(addend)
        if made is not None:
            self.editor.forget(addend)
        self._own(addend if made is None else made, parameter, (position >= self.trace.steady_start, 1))
        if not self.policy.reduce_once:
            self.editor.replace(position, shard_op(op, self.mesh.dp_shard, {ref.storage for ref in op.inputs}))

    def _own(self, storage: int, parameter: int, when: tuple[bool, int]) -> None:
        old = self.editor.storages[storage]
        self.editor.storages[storage] = StorageRecord(
            old.nbytes, Category.GRADIENT, old.module, False, False, parameter
        )
        self._unsharded[(*when, parameter)] = storage

    def _cast_source(self, storage: int) -> int | None:
        """The gradient in the compute dtype that autocast's backward cast into `storage`; the cast goes away."""
        position = self.editor.alloc_position[storage]
        if position < 0:
            return None
        op = self.trace.ops[position]
        if not op.name.startswith("aten._to_copy") or op.outputs[0].storage != storage:
            return None
        source = op.inputs[0]
        if source.dtype != self.trace.autocast_dtype or self.editor.alloc_position[source.storage] < 0:
            return None
        self.editor.drop(position)
        return source.storage

    # ---- forward -------------------------------------------------------------------------------------------------

    def _pre_forward(self, span: Span) -> None:
        order = self._order[span.is_steady, span.microbatch]
        rank = order.index(span.unit)
        here = self.editor.mark(span.start)
        self._starts = [*self._starts, here] if rank else [here]
        self._gather(span.unit, span, at=self._starts[max(rank - 2, 0)])  # when the unit two before has copied out
        self._unshard(span)

    def _post_forward(self, span: Span) -> None:
        if span.unit == 0:
            self._free_last_output(span.end)
        elif self.policy.reshard_after_forward:
            self._reshard(span.unit, span.end)

    # ---- backward ------------------------------------------------------------------------------------------------

    def _pre_backward(self, span: Span) -> None:
        order = self._order[span.is_steady, span.microbatch]
        self._gather(span.unit, span, at=self.editor.mark(span.start))
        self._unshard(span)
        target = order[order.index(span.unit) - 1] if span.unit in order else 0  # before the root: the last block
        if (span.is_steady, span.microbatch, target) in self._goes_back:
            self._gather(target, span, at=self.editor.mark(span.start))

    def _post_backward(self, span: Span) -> None:
        if self._reshards(span):
            self._reshard(span.unit, span.end)
        when = (span.is_steady, span.microbatch)
        made = {
            p: self._unsharded[(*when, p)] for p in self.units[span.unit].parameters if (*when, p) in self._unsharded
        }
        if made and self.policy.reduce_once and not self._is_last(span):
            self._accumulate(span, made)
        elif made:
            self._reduce(span, made)
        if span.unit == 0:
            self._finish_backward(span)

    def _finish_backward(self, span: Span) -> None:
        """What backward never reached through a block's own output, then the waits at the end of backward."""
        for unit in range(1, len(self.units)):
            if (span.is_steady, span.microbatch, unit) not in self._goes_back:
                self._post_backward(replace(span, unit=unit))
        self._finish_reduce(span.end)
        for collective in self._all_reduces:
            self._wait(collective, span.end)
        self._all_reduces.clear()
        if self._is_last(span):
            for unit in list(self._gathered):
                self._reshard(unit, span.end)

    def _accumulate(self, span: Span, made: dict[int, int]) -> None:
        """Unsharded gradients stay, in the reduce dtype (`to_accumulated_grad_if_needed`)."""
        for index, gradient in made.items():
            parameter = self.trace.parameters[index]
            compute_dtype = self._compute_dtype(parameter)
            if compute_dtype == parameter.dtype:
                self._accumulated[index] = gradient
                continue
            total = self.editor.add_storage(
                StorageRecord(parameter.nbytes, Category.GRADIENT, self.units[span.unit].name, False, parameter=index)
            )
            self.editor.alloc(total, span.end)
            source = TensorRef(gradient, parameter.shape, compute_dtype)
            result = TensorRef(total, parameter.shape, parameter.dtype)
            self._insert("aten._to_copy.default", span, span.end, (source,), (result,))
            self.editor.free(gradient, span.end)
            self._accumulated[index] = total

    def _reduce(self, span: Span, made: dict[int, int]) -> None:
        editor, unit, position = self.editor, span.unit, span.end
        self._finish_reduce(position)
        totals = {index: self._accumulated.pop(index, gradient) for index, gradient in made.items()}
        buffer = self._take_buffer(self.reduced_bytes[unit], unit, position)
        sources = tuple(
            TensorRef(storage, p.shape, self._compute_dtype(p) if storage == made[index] else p.dtype)
            for index, storage in totals.items()
            for p in (self.trace.parameters[index],)
        )
        self._insert("aten._chunk_cat.out", span, position, sources, (self._flat(buffer),))
        for storage in {*made.values(), *totals.values()}:
            editor.free(storage, position)
        self._take_reduced(span, tuple(made))
        microbatch = 0 if self.policy.reduce_once else span.microbatch
        reduced = self._issue("reduce_scatter", self.reduced_bytes[unit], "dp_shard", span, microbatch)
        self._reducing = (buffer, reduced)
        if self.mesh.dp_replicate > 1 and self._is_last(span):  # set_requires_all_reduce(False) before the last
            shard_bytes = self.reduced_bytes[unit] // self.mesh.dp_shard
            self._all_reduces.append(self._issue("all_reduce", shard_bytes, "dp_replicate", span, 0, after=reduced))

    def _take_reduced(self, span: Span, parameters: tuple[int, ...]) -> None:
        """The reduced shards: gradients of their own, or added to those of the micro-batches before."""
        fresh = [g for p in parameters if (g := self._sharded.pop((span.is_steady, p), None)) is not None]
        for gradient in fresh:
            self.editor.alloc(gradient, span.end)
        if not fresh:
            output = self._take_buffer(self.reduced_bytes[span.unit] // self.mesh.dp_shard, span.unit, span.end)
            self.editor.free(output, span.end)

    def _finish_reduce(self, position: int) -> None:
        if self._reducing is not None:
            buffer, collective = self._reducing
            self._wait(collective, position)
            self.editor.free(buffer, position)
            self._reducing = None

    # ---- gathering -----------------------------------------------------------------------------------------------

    def _gather(self, unit: int, span: Span, *, at: Mark) -> None:
        """Once for each time a unit is unsharded: a second call, after a prefetch, does nothing."""
        if unit not in self._gathered and unit not in self._prefetched and (nbytes := self.gathered_bytes[unit]):
            output = self._take_buffer(nbytes, unit, span.start)
            gather = self._issue("all_gather", nbytes, "dp_shard", span, span.microbatch, unit=unit, at=at)
            self._prefetched[unit] = (output, gather)

    def _unshard(self, span: Span) -> None:
        if span.unit not in self._prefetched:
            return
        output, collective = self._prefetched.pop(span.unit)
        self._wait(collective, span.start)
        whole = self._take_buffer(self.gathered_bytes[span.unit], span.unit, span.start)
        self._insert("aten.split_with_sizes_copy.out", span, span.start, (self._flat(output),), (self._flat(whole),))
        self._gathered[span.unit] = whole
        self._free_last_output(span.start)
        self._last_output = output
        if span.is_backward:
            self._free_last_output(span.start)

    def _reshard(self, unit: int, position: int) -> None:
        if (whole := self._gathered.pop(unit, None)) is not None:
            self.editor.free(whole, position)

    def _free_last_output(self, position: int) -> None:
        if self._last_output >= 0:
            self.editor.free(self._last_output, position)
            self._last_output = -1

    # ---- records -------------------------------------------------------------------------------------------------

    def _take_buffer(self, nbytes: int, unit: int, position: int) -> int:
        record = StorageRecord(nbytes, Category.COMMUNICATION, self.units[unit].name, False)
        storage = self.editor.add_storage(record)
        self.editor.alloc(storage, position)
        return storage

    def _flat(self, buffer: int) -> TensorRef:
        return TensorRef(buffer, (self.editor.storages[buffer].nbytes,), "uint8")

    def _insert(
        self, name: str, span: Span, position: int, inputs: tuple[TensorRef, ...], outputs: tuple[TensorRef, ...]
    ) -> None:
        phase = Phase.BACKWARD if span.is_backward else Phase.FORWARD
        op = OpRecord(name, phase, self.units[span.unit].name, span.microbatch, inputs, outputs, 0)
        self.editor.insert(op, position)

    def _issue(
        self,
        kind: str,
        nbytes: int,
        axis: str,
        span: Span,
        microbatch: int,
        *,
        unit: int | None = None,
        at: Mark | None = None,
        after: int = -1,
    ) -> int:
        """Collectives of the steady step only; -1 in the first."""
        if not span.is_steady:
            return -1
        return self.editor.issue(
            kind,
            nbytes,
            at=at or self.editor.mark(span.end),
            axis=axis,
            microbatch=microbatch,
            unit=self.units[span.unit if unit is None else unit].name,
            after=after,
        )

    def _wait(self, collective: int, position: int) -> None:
        if collective >= 0:
            self.editor.wait(collective, self.editor.mark(position))
