"""The hooks of `fully_shard` (FSDP2), simulated: what they gather, reduce, take and give back, and when.

Source: torch 2.13.0, torch/distributed/fsdp/_fully_shard/{_fsdp_param_group,_fsdp_collectives,_fsdp_state}.py. Against
that torch on CPU (fake process group of 4 ranks) the peak of allocated bytes comes out to the byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from advisor.hardware.mesh import Mesh
from advisor.trace.edit import Mark, TraceEditor
from advisor.trace.records import Category, OpRecord, ParameterRecord, Phase, StorageRecord, TensorRef
from advisor.trace.shard import shard_numel, shard_op
from advisor.trace.units import Span, Unit, fsdp_units, unit_spans
from advisor.units import dtype_bytes

_FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FullyShardPolicy:
    """How `fully_shard` is called, and what the training loop switches between micro-batches."""

    reshard_after_forward: bool  # of the blocks; the root stays gathered, which is the default of fully_shard
    keep_gathered: bool = False  # set_reshard_after_backward(False) until the last micro-batch
    reduce_once: bool = False  # set_requires_gradient_sync(False) until the last: gradients accumulate unsharded


class Hooks:
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
        self._taken: list[tuple[int, int]] = []  # (unsharded gradient, where it is made)
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
        for gradient, position in self._taken:  # after what hooks put in before the same operator
            self.editor.alloc(gradient, position)

    # ---- sizes ---------------------------------------------------------------------------------------------------

    def _members(self, unit: Unit) -> Iterable[ParameterRecord]:
        return (self.trace.parameters[index] for index in unit.parameters)

    def _padded(self, parameter: ParameterRecord) -> int:
        return shard_numel(parameter, self.mesh.dp_shard) * self.mesh.dp_shard

    def _compute_dtype(self, parameter: ParameterRecord) -> str:
        return (self.trace.autocast_dtype if parameter.dtype in _FLOATS else None) or parameter.dtype

    def _keeps_dtype(self, parameter: ParameterRecord) -> bool:
        return self._compute_dtype(parameter) == parameter.dtype

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
                self._taken.append((made, position))
            self._own(made, record.parameter, (is_steady, 0))
        parameter_of = {storage: parameter for (_, parameter), storage in self._sharded.items()}
        for position, op in enumerate(trace.ops):
            if not op.microbatch or op.phase is not Phase.BACKWARD or not op.name.startswith("aten.add_."):
                continue
            if (index := parameter_of.get(op.inputs[0].storage)) is not None:
                self._take_over_addend(position, op, index)

    def _take_over_addend(self, position: int, op: OpRecord, parameter: int) -> None:
        is_steady = position >= self.trace.steady_start
        if self.policy.reduce_once and self._keeps_dtype(self.trace.parameters[parameter]):
            self._unsharded[is_steady, 1, parameter] = self._unsharded[is_steady, 0, parameter]  # autograd adds to it
            return
        addend = op.inputs[1].storage
        made = self._cast_source(addend)
        if made is not None:
            self.editor.forget(addend)
        self._own(addend if made is None else made, parameter, (is_steady, 1))
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
            if self._keeps_dtype(parameter):
                self._accumulated[index] = gradient
                continue
            total = self.editor.add_storage(
                StorageRecord(parameter.nbytes, Category.GRADIENT, self.units[span.unit].name, False, parameter=index)
            )
            self.editor.alloc(total, span.end)
            source = TensorRef(gradient, parameter.shape, self._compute_dtype(parameter))
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
