"""The CPU: live tensor bytes from the profiler's allocation events, because there is no caching allocator to ask.

Known limitations: scratch memory that MKL and oneDNN take for themselves is no tensor (it shows in the process's
resident memory); tensors that existed before the step and that neither the model, the optimizer nor the batch leads to
are not counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.profiler import profile
from torch.autograd.profiler_util import MEMORY_EVENT_NAME
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from advisor.hardware.detect import cpu_device
from advisor.measure import process_memory
from advisor.measure.backends.base import PeakMemory
from advisor.workload.step import Prepared


class CpuBackend:
    """Times with the host's clock alone: eager CPU operators have finished when they return."""

    name = "cpu"
    order = 100

    def is_available(self) -> bool:
        return True

    def device(self) -> str:
        return "cpu"

    def describe(self) -> str:
        return f"cpu: {cpu_device().title}, {torch.get_num_threads()} threads"

    def free_bytes(self) -> int | None:
        """What the machine has free, or the control group's limit if that is less."""
        capacity = cpu_device().memory_capacity
        known = (process_memory.available_bytes(), None if capacity is None else int(capacity.value))
        return min((value for value in known if value is not None), default=None)

    def synchronize(self) -> None:
        """Nothing runs behind the host's back."""

    @contextmanager
    def recording(self, step: Prepared) -> Iterator[PeakMemory]:
        """What is held before, plus the highest running sum of allocations (positive) and frees (negative) inside."""
        peak = PeakMemory()
        before = live_bytes(held_tensors(step))
        with _quiet_profiler(), profile(profile_memory=True, use_kineto=True) as profiler:
            yield peak
        peak.allocated_bytes = before + _highest_sum(profiler)


BACKEND = CpuBackend()


def held_tensors(step: Prepared) -> Iterator[torch.Tensor]:
    """Tensors that live between two steps: the model's (plain attributes too), the optimizer's, the batch."""
    for module in step.model.modules():
        yield from module.parameters(recurse=False)
        yield from module.buffers(recurse=False)
        yield from (value for value in vars(module).values() if isinstance(value, torch.Tensor))
    yield from (parameter.grad for parameter in step.model.parameters() if parameter.grad is not None)
    state = list(step.optimizer.state.values())
    yield from (leaf for leaf in pytree.tree_leaves((state, step.batch)) if isinstance(leaf, torch.Tensor))


def live_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the distinct CPU storages behind `tensors`."""
    storages: dict[int, int] = {}
    for tensor in tensors:
        for plain in _plain(tensor):
            storage = plain.untyped_storage()
            if storage.device.type == "cpu":
                storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


def _plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that hold the data of a wrapper subclass; the tensor itself otherwise."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        yield from _plain(getattr(tensor, name))


def _highest_sum(profiler: profile) -> int:
    assert profiler.kineto_results is not None, "the profiler has run"
    events: list[Any] = [event for event in profiler.kineto_results.events() if event.name() == MEMORY_EVENT_NAME]
    total = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        total += event.nbytes()
        highest = max(highest, total)
    return highest


@contextmanager
def _quiet_profiler() -> Iterator[None]:
    """torch 2.13's profiler writes its start and stop to stderr unless told otherwise before its first use."""
    name = "KINETO_LOG_LEVEL"
    if name in os.environ:
        yield
        return
    os.environ[name] = "99"
    try:
        yield
    finally:
        del os.environ[name]
