"""The first micro-batch of the steady step, written down from that of the first step: nothing in it is new.

Not where the first left something behind (a cache, a counter, a reference cycle) or freed what was there before it:
then it runs again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from advisor.trace._recorder import Recorder
from advisor.trace._templates import Copy, Segment

_PLAIN = (bool, int, float, str, tuple, type(None))


@dataclass(frozen=True, slots=True)
class _Kept:
    """A tensor that outlives the micro-batch: the loss, or the gradient of `parameter`."""

    storage: int
    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    parameter: torch.nn.Parameter | None = None


class Microbatch:
    """What one micro-batch did, from here to `end`."""

    def __init__(self, recorder: Recorder, model: torch.nn.Module) -> None:
        self._recorder, self._model = recorder, model
        self._start = len(recorder.ops), len(recorder.events)
        self._attributes = _attributes(model)
        self._segment: Segment | None = None
        self._kept: list[_Kept] = []

    def end(self, loss: torch.Tensor) -> None:
        """Call when backward is over and before the optimizer begins."""
        recorder = self._recorder
        first_op, first_event = self._start
        self._segment = Segment(first_op, len(recorder.ops), first_event, len(recorder.events))
        kept: list[tuple[torch.Tensor, torch.nn.Parameter | None]] = [(loss, None)]
        kept += [(p.grad, p) for p in self._model.parameters() if p.grad is not None]
        if all(tensor.layout is torch.strided for tensor, _ in kept):
            self._kept = [
                _Kept(recorder.storage_of(tensor), tensor.shape, tensor.stride(), tensor.dtype, parameter)
                for tensor, parameter in kept
            ]

    @property
    def repeats(self) -> bool:
        """Whether another one does the same; to be asked when the step is over and its gradients are gone."""
        storages = self._recorder.storages
        assert self._segment is not None
        events = self._recorder.events[self._segment.first_event : self._segment.last_event]
        taken = {e.storage for e in events if e.is_alloc and not storages[e.storage].from_outside}
        freed = {e.storage for e in events if not e.is_alloc}
        return (
            taken - freed == {kept.storage for kept in self._kept}
            and freed <= taken
            and not any(storages[storage].alive for storage in taken)
            and all(parameter.grad is None for parameter in self._model.parameters())
            and self._attributes == _attributes(self._model)
        )

    def repeat(self) -> torch.Tensor:
        """Write it down once more; sets the gradients, returns the loss."""
        recorder = self._recorder
        assert self._segment is not None
        copy = Copy(recorder, template="", name="")
        copy.write(self._segment)
        made: list[torch.Tensor] = []
        for kept in self._kept:
            tensor = recorder.results.empty_strided(kept.shape, kept.strides, kept.dtype)
            recorder.attach(tensor.untyped_storage(), copy.storage(kept.storage))
            if kept.parameter is not None:
                kept.parameter.grad = tensor
            made.append(tensor)
        return made[0]


def _attributes(model: torch.nn.Module) -> list[tuple[str, Any]]:
    """Plain values on the modules: a step that changes one may do something else the next time."""
    return [
        (key, value)
        for module in model.modules()
        for key, value in module.__dict__.items()
        if isinstance(value, _PLAIN) and not key.startswith("__")
    ]
