"""Results of operators met before, made from their shapes alone.

A fake kernel asked again with the same shapes could only answer the same; making that answer here costs a fifth of
asking.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.utils import _pytree as pytree

_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_NEVER = (torch.Tag.inplace_view, torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)

_CPU = torch.device("cpu")


class _UnknownError(Exception):
    """Shapes do not say all there is to know."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor of a result: new (no argument), a view of an argument, or that argument itself."""

    argument: int | None
    is_view: bool
    shape: torch.Size
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class _Result:
    leaves: tuple[_Tensor | None, ...]
    structure: pytree.TreeSpec


class Results:
    """Calls operators on the fake tensors of `mode`, and remembers.

    Not remembered: what depends on values (`.item()`, small constants), operators that change the shape of an argument,
    real tensors, layouts other than strided.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._known: dict[tuple[Any, ...], _Result | None] = {}

    def __call__(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensors: list[FakeTensor] = []
        try:
            key = func, *_described(args, kwargs, tensors)
        except _UnknownError:
            return func(*args, **kwargs)
        if key in self._known:
            known = self._known[key]
            return func(*args, **kwargs) if known is None else self._make(known, tensors)
        result = func(*args, **kwargs)
        try:
            changed = key[1:] != _described(args, kwargs, [])
            self._known[key] = None if changed or any(tag in _NEVER for tag in func.tags) else _learn(result, tensors)
        except _UnknownError:
            self._known[key] = None
        return result

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A new tensor of the same shape, strides and dtype."""
        return self.empty_strided(tensor.shape, tensor.stride(), tensor.dtype)

    def empty_strided(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device = _CPU
    ) -> torch.Tensor:
        """A new tensor, without asking any mode."""
        with in_kernel_invocation_manager(self._mode):
            elem = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
        return FakeTensor(self._mode, elem, device)

    def _make(self, known: _Result, tensors: list[FakeTensor]) -> Any:
        leaves = [None if leaf is None else self._tensor(leaf, tensors) for leaf in known.leaves]
        return leaves[0] if known.structure.is_leaf() else pytree.tree_unflatten(leaves, known.structure)

    def _tensor(self, leaf: _Tensor, tensors: list[FakeTensor]) -> torch.Tensor:
        if leaf.argument is None:
            return self.empty_strided(leaf.shape, leaf.strides, leaf.dtype, leaf.device)
        source = tensors[leaf.argument]
        if not leaf.is_view:
            return source
        with in_kernel_invocation_manager(self._mode):
            elem = torch.empty(0, dtype=leaf.dtype, device="meta")
            elem.set_(source.untyped_storage(), leaf.offset, leaf.shape, leaf.strides)
        return FakeTensor(self._mode, elem, leaf.device)


def _described(args: Any, kwargs: Any, tensors: list[FakeTensor]) -> tuple[Any, ...]:
    """All that decides a result; the tensors met on the way are added to `tensors`."""
    key: list[Any] = [torch.get_default_dtype()]
    _describe(args, key, tensors)
    for name, value in kwargs.items():
        key.append(name)
        _describe(value, key, tensors)
    return tuple(key)


def _describe(value: Any, key: list[Any], tensors: list[FakeTensor]) -> None:
    if isinstance(value, FakeTensor):
        _check(value)
        key += (value.shape, value.stride(), value.storage_offset(), value.dtype, value.fake_device)
        tensors.append(value)
    elif isinstance(value, (list, tuple)):
        key += (type(value), len(value))
        for item in value:
            _describe(item, key, tensors)
    elif isinstance(value, _PLAIN):
        key += (type(value), value)  # 1, 1.0 and True are equal and give other dtypes
    else:
        raise _UnknownError


def _check(tensor: FakeTensor) -> None:
    if tensor.constant is not None or tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        raise _UnknownError


def _learn(result: Any, tensors: list[FakeTensor]) -> _Result:
    """How to make `result` again from arguments of the same shapes."""
    leaves, structure = pytree.tree_flatten(result)
    made = tuple(None if leaf is None else _leaf(leaf, tensors) for leaf in leaves)
    fresh = [
        leaf.untyped_storage()._cdata
        for leaf, how in zip(leaves, made, strict=True)
        if how is not None and how.argument is None
    ]
    if len(set(fresh)) < len(fresh):  # parts of one new storage
        raise _UnknownError
    return _Result(made, structure)


def _leaf(leaf: Any, tensors: list[FakeTensor]) -> _Tensor:
    if not isinstance(leaf, FakeTensor):
        raise _UnknownError
    _check(leaf)
    storage = leaf.untyped_storage()
    sources = [i for i, tensor in enumerate(tensors) if tensor.untyped_storage()._cdata == storage._cdata]
    if len(sources) > 1 or (not sources and storage.nbytes() != _nbytes(leaf)):
        raise _UnknownError  # arguments that share memory, or new memory that the tensor does not fill
    return _Tensor(
        argument=sources[0] if sources else None,
        is_view=bool(sources) and tensors[sources[0]] is not leaf,
        shape=leaf.shape,
        strides=leaf.stride(),
        offset=int(leaf.storage_offset()),
        dtype=leaf.dtype,
        device=leaf.fake_device,
    )


def _nbytes(tensor: torch.Tensor) -> int:
    """Bytes that `torch.empty_strided` takes for this shape."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
