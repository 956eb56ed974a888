"""A chain of equal blocks: runs the first and the last of them, and writes the records of the others (`_replay.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from advisor.trace._recorder import ACCUMULATE_GRAD, Recorder, sequence_number
from advisor.trace._templates import Call, Copy, Pass, Segment, Template, tensors_of
from advisor.trace.records import Phase

HEAD = 2  # blocks that run at the front of a chain
TAIL = 3  # and at its back: where one ends in backward shows only in the one that follows
SHORTEST = HEAD + TAIL + 2


class ReplayInvalidError(Exception):
    """The blocks of a chain do not give equal records."""


class Chain:
    """One chain of equal blocks, called one after another, once or more in each forward."""

    def __init__(self, recorder: Recorder, blocks: list[tuple[str, torch.nn.Module]]) -> None:
        self.recorder = recorder
        self.blocks = blocks
        self.length = len(blocks)
        self.passes: list[Pass] = []
        self.parameters = [list(block.parameters()) for _, block in blocks]
        self.constants = [[*block.parameters(), *block.buffers()] for _, block in blocks]
        self._forwards: list[Callable[..., Any]] = []

    # ---- installing --------------------------------------------------------------------------------------------

    def install(self) -> None:
        for position, (_, block) in enumerate(self.blocks):
            forward = block.forward
            self._forwards.append(forward)
            block.forward = self._wrapped(position, forward)

    def remove(self) -> None:
        for (_, block), forward in zip(self.blocks, self._forwards, strict=True):
            if getattr(forward, "__func__", None) is getattr(type(block), "forward", None):
                del block.forward
            else:
                block.forward = forward

    def _wrapped(self, position: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.recorder.phase is not Phase.FORWARD:
                return forward(*args, **kwargs)
            hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
            if hooks is not None and not self.recorder.offloading:  # ours leave every block alike
                raise ReplayInvalidError("saved-tensor hooks")
            if position == 0:
                self.passes.append(Pass())
            if not self.passes or len(self.passes[-1].calls) != position:
                raise ReplayInvalidError("blocks are not called one after another")
            if position < HEAD or position >= self.length - TAIL:
                return self._run(position, forward, args, kwargs)
            return self._replay(position, args, kwargs)

        return call

    # ---- forward -----------------------------------------------------------------------------------------------

    def _run(self, position: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        recorder, current = self.recorder, self.passes[-1]
        tensors = tensors_of((args, kwargs))
        call = Call(position, self.blocks[position][0], [recorder.storage_of(t) for t in tensors], [])
        call.needs_gradient = [t.requires_grad for t in tensors]
        first_op, first_event, first_storage = len(recorder.ops), len(recorder.events), len(recorder.storages)
        start = sequence_number()
        output = forward(*args, **kwargs)
        call.sequence = start, sequence_number()
        new = range(first_storage, len(recorder.storages))
        call.roles = [storage for storage in new if not recorder.storages[storage].from_outside]
        call.forward = Segment(first_op, len(recorder.ops), first_event, len(recorder.events))
        outputs = tensors_of(output)
        call.outputs = [recorder.storage_of(t) for t in outputs]
        if set(call.outputs) & set(call.inputs) or len(set(call.outputs)) != len(outputs):
            raise ReplayInvalidError("an output shares memory with an input")
        if position >= self.length - TAIL:
            call.incoming = [-1] * len(outputs)
            for slot, tensor in enumerate(outputs):
                if tensor.requires_grad:
                    tensor.register_hook(_note_gradient(recorder, call.incoming, slot))  # type: ignore[no-untyped-call]
        if position == 1:
            self._template = Template(args, kwargs, output)
        elif position > 1:
            self._check_forward(call, current, args, kwargs)
        current.calls.append(call)
        return output

    def _check_forward(self, call: Call, current: Pass, args: Any, kwargs: Any) -> None:
        """A block that ran must have done what the template says."""
        template = current.calls[1]
        copy = self._copy(call, current, args, kwargs)
        assert template.forward is not None
        assert call.forward is not None
        if not copy.matches(template.forward, call.forward):
            raise ReplayInvalidError("blocks differ in forward")

    def _copy(self, call: Call, current: Pass, args: Any, kwargs: Any) -> Copy:
        """What turns block 1's forward into that of `call`."""
        template = current.calls[1]
        if not self._template.matches(args, kwargs):
            raise ReplayInvalidError("blocks are called with other arguments")
        copy = Copy(self.recorder, template=template.name, name=call.name)
        for mine, theirs in zip(call.inputs, template.inputs, strict=True):
            if mine != self._carried(theirs, current.calls[0], current.calls[call.position - 1]):
                raise ReplayInvalidError("an argument comes from elsewhere")
            copy.map(theirs, mine)
        self._map_constants(copy, template.position, call.position)
        return copy

    def _replay(self, position: int, args: Any, kwargs: Any) -> Any:
        recorder, current = self.recorder, self.passes[-1]
        template, before = current.calls[1], current.calls[position - 1]
        tensors = tensors_of((args, kwargs))
        storages = [recorder.storage_of(t) for t in tensors]
        call = Call(position, self.blocks[position][0], storages, [], replayed=True)
        copy = self._copy(call, current, args, kwargs)
        assert template.forward is not None
        call.roles = copy.write(template.forward)
        for theirs, mine in zip(template.roles, call.roles, strict=True):
            if theirs not in template.outputs and recorder.storages[theirs].alive and recorder.storages[mine].alive:
                current.mirrored.setdefault(theirs, []).append(mine)
        for theirs, mine in zip(current.calls[0].outputs, before.outputs, strict=True):
            if recorder.storages[theirs].alive:  # whoever keeps block 0's output keeps this one too
                recorder.storages[mine].ignore_death = True
        call.outputs = [copy.storage(storage) for storage in template.outputs]
        current.calls.append(call)
        return self._outputs(call, current, tensors)

    def _carried(self, theirs: int, previous: Call, before: Call) -> int:
        """What stands here for a storage that came into block 1: an output of the block before, or the same."""
        if theirs in previous.outputs:
            return before.outputs[previous.outputs.index(theirs)]
        if theirs in previous.roles:
            return before.roles[previous.roles.index(theirs)]
        return theirs

    def _map_constants(self, copy: Copy, template: int, position: int) -> None:
        for theirs, mine in zip(self.constants[template], self.constants[position], strict=True):
            copy.map(self.recorder.storage_of(theirs), self.recorder.storage_of(mine))

    def _outputs(self, call: Call, current: Pass, tensors: list[torch.Tensor]) -> Any:
        recorder = self.recorder
        recorder.paused = True
        try:
            carrier = [t for t in tensors if t.requires_grad]
            made = _Replayed.apply(self, call, current, self._template, len(carrier), *carrier)  # type: ignore[no-untyped-call]
        finally:
            recorder.paused = False
        made = list(made) if isinstance(made, tuple) else [made]
        for tensor, index in zip(made, call.outputs, strict=True):
            recorder.attach(tensor.untyped_storage(), index)
        return self._template.rebuild(made)

    # ---- backward ----------------------------------------------------------------------------------------------

    def replay_backward(self, call: Call, current: Pass, grads: Iterable[torch.Tensor | None]) -> list[int | None]:
        """Write the backward of a replayed block; returns storages of the gradients of its inputs."""
        recorder = self.recorder
        template = current.calls[self.length - 2]
        if current.backward is None:
            current.backward = self._find_backward(current)
        incoming = [None if grad is None else recorder.storage_of(grad) for grad in grads]
        copy = self._backward_copy(current, call, incoming)
        taken = copy.write(current.backward)
        self._set_gradients(template.position, call.position, copy)
        outgoing = [None if theirs is None else copy.storage(theirs) for theirs in current.outgoing]
        kept = {*outgoing, *self._gradients(call.position)}
        for storage in taken:
            if recorder.storages[storage].alive and storage not in kept:
                recorder.free(storage)
        return outgoing

    def _backward_copy(self, current: Pass, call: Call, incoming: Iterable[int | None]) -> Copy:
        """What turns block n-2's backward into that of `call`."""
        template = current.calls[self.length - 2]
        copy = Copy(self.recorder, template=template.name, name=call.name)
        for theirs, mine in zip(template.roles, call.roles, strict=True):
            copy.map(theirs, mine)
        for theirs, mine in zip(template.inputs, call.inputs, strict=True):
            copy.map(theirs, mine)
        for theirs, gradient in zip(template.incoming, incoming, strict=True):
            if gradient is not None:
                copy.map(theirs, gradient)
        self._map_constants(copy, template.position, call.position)
        # Gradients to which this micro-batch adds.
        accumulated = zip(self._gradients(template.position), self._gradients(call.position), strict=True)
        for gradient, before in accumulated:
            if before is not None and gradient is not None:
                copy.map(gradient, before)
        return copy

    def _find_backward(self, current: Pass) -> Segment:
        """Cut block n-2's backward out of the records: that of block n-3 has just ended."""
        template, following = current.calls[self.length - 2], current.calls[self.length - 3]
        segment = self._backward_segment(template)
        if -1 in following.incoming:
            raise ReplayInvalidError("an output has no gradient")
        current.outgoing = [self._outgoing(storage, current) for storage in template.inputs]
        if any(need and out is None for need, out in zip(template.needs_gradient, current.outgoing, strict=True)):
            raise ReplayInvalidError("an argument shared by the blocks needs a gradient")
        copy = self._backward_copy(current, following, following.incoming)
        if not copy.matches(segment, self._backward_segment(following)):
            raise ReplayInvalidError("blocks differ in backward")
        return segment

    def _backward_segment(self, call: Call) -> Segment:
        recorder = self.recorder
        low, high = call.sequence
        own = {recorder.parameter_modules.get(id(p)) for p in self.parameters[call.position]}
        inside: list[int] = []
        for index in range(len(recorder.ops) - 1, -1, -1):
            if recorder.ops[index].phase not in (Phase.BACKWARD, Phase.RECOMPUTE):
                break
            sequence = recorder.op_sequences[index]
            if sequence == ACCUMULATE_GRAD:
                belongs = recorder.ops[index].module in own
            else:
                belongs = sequence is not None and low <= sequence < high
            if belongs:
                inside.append(index)
        if not inside:
            raise ReplayInvalidError("a block has no backward")
        first, last = inside[-1], inside[0]
        if last - first + 1 != len(inside):
            raise ReplayInvalidError("backward of two blocks is interleaved")
        return Segment(first, last + 1, recorder.events_before[first], self._events_at(last + 1))

    def _events_at(self, op: int) -> int:
        before = self.recorder.events_before
        return before[op] if op < len(before) else len(self.recorder.events)

    def _outgoing(self, storage: int, current: Pass) -> int | None:
        before = current.calls[self.length - 3]
        return before.incoming[before.outputs.index(storage)] if storage in before.outputs else None

    def _gradients(self, position: int) -> list[int | None]:
        return [None if p.grad is None else self.recorder.storage_of(p.grad) for p in self.parameters[position]]

    def _set_gradients(self, template: int, position: int, copy: Copy) -> None:
        recorder = self.recorder
        for theirs, mine in zip(self.parameters[template], self.parameters[position], strict=True):
            if theirs.grad is None or mine.grad is not None:
                continue
            index = copy.storage(recorder.storage_of(theirs.grad))
            grad = recorder.results.empty_like(theirs.grad)
            recorder.attach(grad.untyped_storage(), index)
            mine.grad = grad

    # ---- is it true --------------------------------------------------------------------------------------------

    def mirror_free(self, storage: int) -> None:
        """A template's storage died outside its segments (an autocast cache, say): so do its copies."""
        if not self.passes:
            return
        current = self.passes[-1]
        for copy in current.mirrored.pop(storage, ()):
            if self.recorder.phase is Phase.FORWARD:
                self.recorder.free(copy)

    def check(self) -> None:
        for current in self.passes:
            if len(current.calls) != self.length:
                raise ReplayInvalidError("not every block was called")
            inner = set(current.calls[1].roles) - set(current.calls[1].outputs)
            self._check_nothing_escapes(current, inner)
            for call in current.calls:
                if call.replayed and any(self.recorder.storages[s].alive for s in call.roles):
                    raise ReplayInvalidError("a block leaves something behind")

    def _check_nothing_escapes(self, current: Pass, inner: set[int]) -> None:
        call = current.calls[1]
        outputs = set(call.outputs)
        assert call.forward is not None
        next_call = current.calls[2]
        prefix = call.name + "."
        following = (next_call.name, next_call.name + ".")
        for index in range(call.forward.last_op, len(self.recorder.ops)):
            op = self.recorder.ops[index]
            if op.phase is Phase.OPTIMIZER:
                break
            own = op.module == call.name or op.module.startswith(prefix)
            near = own or op.module == following[0] or op.module.startswith(following[1])
            for ref in op.inputs:
                if (ref.storage in inner and not own) or (ref.storage in outputs and not near):
                    raise ReplayInvalidError("something inside a block is read outside")


class _Replayed(torch.autograd.Function):
    """The output of a block that was not run; its backward writes the block's backward records."""

    @staticmethod
    def forward(
        ctx: Any,
        chain: Chain,
        call: Call,
        current: Pass,
        template: Template,
        num_inputs: int,
        *inputs: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.chain, ctx.call, ctx.current, ctx.num_inputs = chain, call, current, num_inputs
        ctx.shapes = [(tuple(t.shape), t.stride(), t.dtype) for t in inputs]
        ctx.slots = [call.inputs.index(chain.recorder.storage_of(t)) for t in inputs]
        empty = chain.recorder.results.empty_strided
        outputs = tuple(empty(shape, stride, dtype) for shape, stride, dtype, _ in template.outputs)
        ctx.mark_non_differentiable(
            *(t for t, (_, _, _, grad) in zip(outputs, template.outputs, strict=True) if not grad)
        )
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        chain: Chain = ctx.chain
        recorder = chain.recorder
        outgoing = chain.replay_backward(ctx.call, ctx.current, grads)
        known = {recorder.storage_of(g): g for g in grads if g is not None}
        made: list[torch.Tensor | None] = []
        for slot, (shape, stride, dtype) in zip(ctx.slots, ctx.shapes, strict=True):
            index = outgoing[slot]
            if index is None:
                made.append(None)
            elif index in known:
                made.append(known[index])
            else:
                grad = recorder.results.empty_strided(shape, stride, dtype)
                recorder.attach(grad.untyped_storage(), index)
                made.append(grad)
        return (None, None, None, None, None, *made)


def _note_gradient(recorder: Recorder, incoming: list[int], slot: int) -> Callable[[torch.Tensor], None]:
    def hook(grad: torch.Tensor) -> None:
        incoming[slot] = recorder.storage_of(grad)

    return hook
