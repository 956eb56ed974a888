"""What is made from memory must be what the fake kernel would have made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode

from advisor.trace._results import Results

aten = torch.ops.aten


@pytest.fixture
def mode() -> Iterator[FakeTensorMode]:
    with FakeTensorMode() as mode:
        yield mode


@pytest.fixture
def results(mode: FakeTensorMode) -> Results:
    return Results(mode)


def _twice(results: Results, func: Any, make: Callable[[], tuple[Any, ...]]) -> tuple[Any, tuple[Any, ...]]:
    """The remembered result and its arguments; the first call is the fake kernel's."""
    results(func, make(), {})
    args = make()
    asked = len(results._known)
    result = results(func, args, {})
    assert len(results._known) == asked
    return result, args


def _like(result: Any, expected: Any) -> None:
    assert type(result) is type(expected)
    if isinstance(expected, (list, tuple)):
        assert len(result) == len(expected)
        for mine, theirs in zip(result, expected, strict=True):
            _like(mine, theirs)
    elif expected is not None:
        assert isinstance(result, FakeTensor)
        for what in ("shape", "dtype", "device", "requires_grad"):
            assert getattr(result, what) == getattr(expected, what)
        assert result.stride() == expected.stride()
        assert result.storage_offset() == expected.storage_offset()
        assert result.untyped_storage().nbytes() == expected.untyped_storage().nbytes()


@pytest.mark.parametrize(
    ("func", "make"),
    [
        (aten.mm.default, lambda: (torch.empty(4, 8), torch.empty(8, 3))),
        (aten.add.Tensor, lambda: (torch.empty(4, 8, dtype=torch.int64), 1.5)),
        (aten.native_layer_norm.default, lambda: (torch.empty(4, 8), [8], torch.empty(8), None, 1e-5)),
        (aten.convolution.default,
         lambda: (torch.empty(2, 3, 8, 8).to(memory_format=torch.channels_last), torch.empty(4, 3, 3, 3), None,
                  [1, 1], [1, 1], [1, 1], False, [0, 0], 1)),
        (aten.convolution_backward.default,
         lambda: (torch.empty(2, 4, 8, 8), torch.empty(2, 3, 8, 8), torch.empty(4, 3, 3, 3), None, [1, 1], [1, 1],
                  [1, 1], False, [0, 0], 1, [False, True, False])),
        (aten.split.Tensor, lambda: (torch.empty(4, 6), 2, 1)),
        (aten.topk.default, lambda: (torch.empty(4, 6), 2)),
        (aten.select.int, lambda: (torch.empty(4, 6), 0, 2)),
        (aten.view.dtype, lambda: (torch.empty(4, 6), torch.int32)),
        (aten.expand.default, lambda: (torch.empty(4, 1), [4, 6])),
    ],
    ids=lambda value: str(value) if not callable(value) or hasattr(value, "_schema") else "",
)  # fmt: skip
def test_a_remembered_result_is_the_kernels(results: Results, func: Any, make: Callable[[], tuple[Any, ...]]) -> None:
    result, args = _twice(results, func, make)
    _like(result, func(*args))


def test_a_view_shares_the_memory_of_its_own_argument(results: Results) -> None:
    view, (source, *_) = _twice(results, aten.select.int, lambda: (torch.empty(4, 6), 0, 2))
    assert view.untyped_storage()._cdata == source.untyped_storage()._cdata
    assert view.storage_offset() == 12


def test_an_operator_in_place_gives_its_argument_back(results: Results) -> None:
    result, (target, _) = _twice(results, aten.add_.Tensor, lambda: (torch.empty(4), torch.empty(4)))
    assert result is target


def test_one_and_one_point_nought_are_not_the_same(results: Results) -> None:
    whole = torch.empty(4, dtype=torch.int64)
    assert results(aten.add.Tensor, (whole, 1), {}).dtype is torch.int64
    assert results(aten.add.Tensor, (whole, 1.0), {}).dtype is torch.float32
    assert results(aten.add.Tensor, (whole, True), {}).dtype is torch.int64


def test_a_tensor_that_changes_its_shape_is_never_remembered(results: Results) -> None:
    for _ in range(2):
        tensor = torch.empty(4, 6)
        results(aten.t_.default, (tensor,), {})
        assert tensor.shape == (6, 4)


def test_arguments_that_share_memory_are_asked_each_time(results: Results) -> None:
    for _ in range(2):
        tensor = torch.empty(4)
        assert results(aten.add_.Tensor, (tensor, tensor), {}) is tensor
    first, second = torch.empty(4), torch.empty(4)
    assert results(aten.add_.Tensor, (second, first), {}) is second


def test_a_value_is_asked_for_and_not_made_up(results: Results) -> None:
    for _ in range(2):
        with pytest.raises(DataDependentOutputException):
            results(aten._local_scalar_dense.default, (torch.empty(()),), {})


def test_a_new_tensor_holds_the_bytes_of_its_layout(results: Results) -> None:
    source = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
    _like(results.empty_like(source), torch.empty_like(source))
