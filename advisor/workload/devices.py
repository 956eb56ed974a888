"""Code written for a GPU, run on the CPU: `.cuda()`, `device="cuda"`, `torch.cuda.LongTensor` mean this device.

A trace follows the target on CPU tensors, so what such code allocates is on the target all the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
from torch.overrides import TorchFunctionMode

from advisor.workload.guard import replaced

# Kinds of device that public code names beside "cpu"; "meta" stays what it is.
_ACCELERATORS = frozenset({"cuda", "mps", "xpu", "hpu", "npu"})
_CPU = torch.device("cpu")


@contextlib.contextmanager
def accelerators_mean_cpu() -> Iterator[None]:
    tensors = [name for name in dir(torch.cuda) if name.endswith("Tensor") and hasattr(torch, name)]
    with (
        replaced(*((torch.cuda, name, getattr(torch, name)) for name in tensors)),
        replaced((torch.autocast, "__init__", _autocast_on_cpu(torch.autocast.__init__))),
        _Redirect(),
    ):
        yield


class _Redirect(TorchFunctionMode):
    """Every function of torch that takes a device, `torch.device` itself included, with accelerators replaced."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        if func is torch.Tensor.numpy and isinstance(args[0], FakeTensor):  # refused as if it were about subclasses
            raise DataDependentOutputException("Tensor.numpy")  # type: ignore[arg-type]
        if func is torch.Tensor.type and len(args) > 1 and isinstance(args[1], str):
            args = (args[0], args[1].replace("torch.cuda.", "torch."), *args[2:])
        if any(map(_is_accelerator, args)):
            args = tuple(_CPU if _is_accelerator(value) else value for value in args)
        if _is_accelerator(kwargs.get("device")):
            kwargs = {**kwargs, "device": _CPU}
        if kwargs.get("pin_memory"):  # needs a driver
            kwargs = {**kwargs, "pin_memory": False}
        return func(*args, **kwargs)


def _is_accelerator(value: object) -> bool:
    if isinstance(value, torch.device):
        return value.type in _ACCELERATORS
    return isinstance(value, str) and value.partition(":")[0] in _ACCELERATORS


def _autocast_on_cpu(start: Any) -> Any:
    """Autocast of a CUDA device, on CPU tensors: with its own default, float16."""

    def __init__(self: Any, device_type: str, dtype: torch.dtype | None = None, *rest: Any, **options: Any) -> None:
        if device_type in _ACCELERATORS:
            device_type, dtype = "cpu", dtype or torch.float16
        start(self, device_type, dtype, *rest, **options)

    return __init__
