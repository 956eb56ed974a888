"""Blocks that repeat run a few times; the records of the others are written down from those.

Of a chain of n equal blocks called one after another, the first three and the last three run. Block 1 gives the template
of a forward, block n-2 that of a backward, because backward meets it first. A block between takes its records from the
templates, with its own parameters, storages and names; its output is a tensor whose `backward` writes the backward
records. Storages a block keeps for backward are not held by tensors then: the template says when they die.

What a template can't express ends in `ReplayInvalidError`, and the whole model is traced: a block that leaves more than
its output behind (a cache, router logits), reads what an earlier block left, or steps the optimizer from a hook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from advisor.trace._recorder import Recorder
from advisor.trace.records import MemoryEvent, OpRecord, Phase, TensorRef

HEAD = 3  # blocks that run at the front and at the back of a chain
SHORTEST = 2 * HEAD + 2


class ReplayInvalidError(Exception):
    """The blocks of a chain do not give equal records."""


class BlockReplayer:
    """Context manager that puts itself in front of every block of every long chain."""

    def __init__(self, recorder: Recorder, model: torch.nn.Module, chains: list[list[str]]) -> None:
        modules = dict(model.named_modules())
        self._chains = [
            _Chain(recorder, [(name, modules[name]) for name in chain])
            for chain in chains
            if len(chain) >= SHORTEST and _alike([modules[name] for name in chain])
        ]
        self._recorder = recorder

    def __enter__(self) -> BlockReplayer:
        for chain in self._chains:
            chain.install()
        self._recorder.on_free = self._on_free
        return self

    def __exit__(self, *error: object) -> None:
        self._recorder.on_free = None
        for chain in self._chains:
            chain.remove()

    def _on_free(self, storage: int) -> None:
        for chain in self._chains:
            chain.mirror_free(storage)

    def check(self) -> None:
        """Raises `ReplayInvalidError` if a template turns out not to stand for its chain."""
        for chain in self._chains:
            chain.check()


def _alike(blocks: list[torch.nn.Module]) -> bool:
    """No parameter is shared or stepped from a hook, and the same code runs in all (an option may wrap every other one)."""
    if len({getattr(block.forward, "__code__", None) for block in blocks}) > 1:
        return False
    parameters = [p for block in blocks for p in block.parameters()]
    return len(parameters) == len({id(p) for p in parameters}) and not any(
        p._post_accumulate_grad_hooks for p in parameters
    )


class _Chain:
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
            if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
                raise ReplayInvalidError("saved-tensor hooks")
            if position == 0:
                self.passes.append(Pass())
            if not self.passes or len(self.passes[-1].calls) != position:
                raise ReplayInvalidError("blocks are not called one after another")
            if position < HEAD or position >= self.length - HEAD:
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
        start = torch.autograd._get_sequence_nr()
        output = forward(*args, **kwargs)
        call.sequence = start, torch.autograd._get_sequence_nr()
        call.roles = list(range(first_storage, len(recorder.storages)))
        call.forward = Segment(first_op, len(recorder.ops), first_event, len(recorder.events), call.roles)
        outputs = tensors_of(output)
        call.outputs = [recorder.storage_of(t) for t in outputs]
        if set(call.outputs) & set(call.inputs) or len(set(call.outputs)) != len(outputs):
            raise ReplayInvalidError("an output shares memory with an input")
        if position >= self.length - HEAD:
            call.incoming = [-1] * len(outputs)
            for slot, tensor in enumerate(outputs):
                if tensor.requires_grad:
                    tensor.register_hook(_note_gradient(recorder, call.incoming, slot))
        current.calls.append(call)
        if position == 1:
            self._template = Template(args, kwargs, output)
        return output

    def _replay(self, position: int, args: Any, kwargs: Any) -> Any:
        recorder, current = self.recorder, self.passes[-1]
        template, before = current.calls[1], current.calls[position - 1]
        tensors = tensors_of((args, kwargs))
        storages = [recorder.storage_of(t) for t in tensors]
        if not self._template.matches(args, kwargs):
            raise ReplayInvalidError("blocks are called with other arguments")
        mapping = Mapping()
        for mine, theirs in zip(storages, template.inputs, strict=True):
            expected = self._carried(theirs, current.calls[0], before)
            if mine != expected:
                raise ReplayInvalidError("an argument comes from elsewhere")
            mapping.external[theirs] = mine
        self._map_constants(mapping, 1, position)
        call = Call(position, self.blocks[position][0], storages, [], replayed=True)
        assert template.forward is not None
        call.roles = write_down(recorder, template.forward, mapping)
        for theirs, mine in zip(template.roles, call.roles, strict=True):
            if recorder.storages[theirs].alive and recorder.storages[mine].alive:
                current.mirrored.setdefault(theirs, []).append(mine)
        for storage in before.outputs:  # whoever keeps block 1's input keeps this one too
            if recorder.storages[template.inputs[0]].alive:
                recorder.storages[storage].ignore_death = True
        call.outputs = [mapping.apply(storage) for storage in template.outputs]
        current.calls.append(call)
        return self._outputs(call, current, tensors)

    def _carried(self, theirs: int, previous: Call, before: Call) -> int:
        """What stands here for a storage that came into block 1: an output of the block before, or the same."""
        if theirs in previous.outputs:
            return before.outputs[previous.outputs.index(theirs)]
        if theirs in previous.roles:
            return before.roles[previous.roles.index(theirs)]
        return theirs

    def _map_constants(self, mapping: Mapping, template: int, position: int) -> None:
        for theirs, mine in zip(self.constants[template], self.constants[position], strict=True):
            mapping.external[self.recorder.storage_of(theirs)] = self.recorder.storage_of(mine)

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
            self._find_backward(current)
        assert current.backward is not None
        mapping = Mapping()
        for theirs, mine in zip(template.roles, call.roles, strict=True):
            mapping.external[theirs] = mine
        for theirs, mine in zip(template.inputs, call.inputs, strict=True):
            mapping.external[theirs] = mine
        for theirs, grad in zip(template.incoming, grads, strict=True):
            if grad is not None:
                mapping.external[theirs] = recorder.storage_of(grad)
        self._map_constants(mapping, self.length - 2, call.position)
        accumulated = [p.grad for p in self.parameters[call.position]]
        for theirs, before in zip(self._gradients(template.position), accumulated, strict=True):
            if before is not None and theirs is not None:
                mapping.external[theirs] = recorder.storage_of(before)
        taken = write_down(recorder, current.backward, mapping)
        self._set_gradients(template.position, call.position, mapping)
        outgoing = [None if theirs is None else mapping.apply(theirs) for theirs in current.outgoing]
        kept = {*outgoing, *(g for g in self._gradients(call.position))}
        for storage in taken:
            if recorder.storages[storage].alive and storage not in kept:
                recorder.free(storage)
        return outgoing

    def _find_backward(self, current: Pass) -> None:
        """Cut block n-2's backward out of the records: it has just ended."""
        recorder = self.recorder
        template = current.calls[self.length - 2]
        low, high = template.sequence
        own = {self.recorder.parameter_modules.get(id(p)) for p in self.parameters[template.position]}
        first = last = None
        for index in range(len(recorder.ops) - 1, -1, -1):
            if recorder.ops[index].phase not in (Phase.BACKWARD, Phase.RECOMPUTE):
                break
            sequence = recorder.op_sequences[index]
            inside = sequence is not None and low <= sequence < high
            if not inside and sequence is not None and sequence >= (1 << 63):
                inside = recorder.ops[index].module in own
            if inside:
                last = index if last is None else last
                first = index
        if first is None or last is None:
            raise ReplayInvalidError("block n-2 has no backward")
        if any(not low <= (recorder.op_sequences[i] or 0) < high and (recorder.op_sequences[i] or 0) < (1 << 63)
               for i in range(first, last + 1)):  # fmt: skip
            raise ReplayInvalidError("backward of two blocks is interleaved")
        first_event, last_event = recorder.events_before[first], recorder.events_before[last + 1]
        allocated = [e.storage for e in recorder.events[first_event:last_event] if e.is_alloc]
        current.backward = Segment(first, last + 1, first_event, last_event, allocated)
        following = current.calls[self.length - 3]
        if -1 in following.incoming:
            raise ReplayInvalidError("an output has no gradient")
        current.outgoing = [self._outgoing(storage, current) for storage in template.inputs]
        if any(need and out is None for need, out in zip(template.needs_gradient, current.outgoing, strict=True)):
            raise ReplayInvalidError("an argument shared by the blocks needs a gradient")

    def _outgoing(self, storage: int, current: Pass) -> int | None:
        before = current.calls[self.length - 3]
        return before.incoming[before.outputs.index(storage)] if storage in before.outputs else None

    def _gradients(self, position: int) -> list[int | None]:
        return [None if p.grad is None else self.recorder.storage_of(p.grad) for p in self.parameters[position]]

    def _set_gradients(self, template: int, position: int, mapping: Mapping) -> None:
        recorder = self.recorder
        for theirs, mine in zip(self.parameters[template], self.parameters[position], strict=True):
            if theirs.grad is None or mine.grad is not None:
                continue
            index = mapping.apply(recorder.storage_of(theirs.grad))
            recorder.paused = True
            try:
                grad = torch.empty_strided(theirs.grad.shape, theirs.grad.stride(), dtype=theirs.grad.dtype)
            finally:
                recorder.paused = False
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
        assert next_call.forward is not None
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
    def forward(  # type: ignore[override]
        ctx: Any,
        chain: _Chain,
        call: Call,
        current: Pass,
        template: Template,
        num_inputs: int,
        *inputs: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.chain, ctx.call, ctx.current, ctx.num_inputs = chain, call, current, num_inputs
        ctx.shapes = [(tuple(t.shape), t.stride(), t.dtype) for t in inputs]
        ctx.slots = [call.inputs.index(chain.recorder.storage_of(t)) for t in inputs]
        outputs = tuple(torch.empty_strided(shape, stride, dtype=dtype) for shape, stride, dtype, _ in template.outputs)
        ctx.mark_non_differentiable(
            *(t for t, (_, _, _, grad) in zip(outputs, template.outputs, strict=True) if not grad)
        )
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        chain: _Chain = ctx.chain
        recorder = chain.recorder
        outgoing = chain.replay_backward(ctx.call, ctx.current, grads)
        known = {recorder.storage_of(g): g for g in grads if g is not None}
        made: list[torch.Tensor | None] = []
        recorder.paused = True
        try:
            for slot, (shape, stride, dtype) in zip(ctx.slots, ctx.shapes, strict=True):
                index = outgoing[slot]
                if index is None:
                    made.append(None)
                elif index in known:
                    made.append(known[index])
                else:
                    grad = torch.empty_strided(shape, stride, dtype=dtype)
                    recorder.attach(grad.untyped_storage(), index)
                    made.append(grad)
        finally:
            recorder.paused = False
        return (None, None, None, None, None, *made)


def _note_gradient(recorder: Recorder, incoming: list[int], slot: int) -> Callable[[torch.Tensor], None]:
    def hook(grad: torch.Tensor) -> None:
        incoming[slot] = recorder.storage_of(grad)

    return hook
