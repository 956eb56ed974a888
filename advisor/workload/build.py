"""Build a model of any size without touching its pages, then turn its tensors into fake ones.

Building under fake tensors breaks on every `.item()` in a constructor (stochastic-depth schedules), which is common.
Building for real does not; and as long as no value of a large tensor is ever written, an 8 B-parameter model costs
address space, not memory. So fills of large tensors are skipped while the constructor runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.errors import WorkloadError
from advisor.workload.checks import check_model
from advisor.workload.devices import accelerators_mean_cpu
from advisor.workload.spec import Workload

# Smaller tensors keep their values: constructors read them (schedules, tables, masks).
LARGE_NUMEL = 1 << 16

_FILLS = frozenset(
    "normal_ uniform_ fill_ zero_ copy_ random_ bernoulli_ exponential_ log_normal_ cauchy_ geometric_ add_ sub_ mul_ "
    "div_ clamp_ clamp_min_ clamp_max_ erfinv_ tril_ triu_ sqrt_ rsqrt_ exp_ log_ neg_ sigmoid_ masked_fill_ pow_ "
    "index_put_ index_fill_ eye advisor_nf4::quantize_".split()
)
_FACTORIES = frozenset("randn rand zeros ones full normal randint randperm randn_like rand_like zeros_like ones_like "
                       "full_like clone".split())  # fmt: skip


class SkipLargeFills(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Large tensors are allocated but never written."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if name in _FILLS and args and isinstance(args[0], torch.Tensor) and args[0].numel() >= LARGE_NUMEL:
            return args[0] if func._schema.returns else None
        if name in _FACTORIES and (empty := _empty_instead(name, args, kwargs)) is not None:
            return empty
        return func(*args, **kwargs)


def _skip_large_fills() -> SkipLargeFills:
    return SkipLargeFills()  # type: ignore[no-untyped-call]


def _empty_instead(name: str, args: Any, kwargs: Any) -> torch.Tensor | None:
    allocation = {
        key: kwargs[key] for key in ("dtype", "layout", "device", "pin_memory") if kwargs.get(key) is not None
    }
    if name.endswith("_like") or name == "clone":
        source = args[0]
        if source.numel() < LARGE_NUMEL:
            return None
        return torch.empty_strided(source.shape, source.stride(), dtype=allocation.get("dtype", source.dtype))
    sizes = next((list(arg) for arg in args if isinstance(arg, (list, tuple, torch.Size))), None)
    if sizes is None or torch.Size(sizes).numel() < LARGE_NUMEL:
        return None
    if name == "randint":
        allocation.setdefault("dtype", torch.int64)
    if name == "full" and "dtype" not in allocation:
        return None  # the dtype follows the value
    return torch.empty(sizes, **allocation)


@contextlib.contextmanager
def _skip_large_initialisers() -> Iterator[None]:
    """`nn.init.orthogonal_` and friends compute for minutes before they write; skip them whole for large tensors."""
    init = torch.nn.init
    names = [name for name in dir(init) if name.endswith("_") and not name.startswith("_")]
    before = {name: getattr(init, name) for name in names}

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def initialise(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if isinstance(tensor, torch.Tensor) and tensor.numel() >= LARGE_NUMEL:
                return tensor
            return function(tensor, *args, **kwargs)

        return initialise

    for name, function in before.items():
        setattr(init, name, wrap(function))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(init, name, function)


def build_model(workload: Workload) -> torch.nn.Module:
    """The model as the user's code builds it, with large tensors uninitialised, in training mode."""
    with accelerators_mean_cpu(), _skip_large_fills(), _skip_large_initialisers():
        model = workload.build_model()
    check_model(model)
    _refuse_sparse_gradients(model)
    return model.train()


def _refuse_sparse_gradients(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse:
            raise WorkloadError(
                f"{name} is an {type(module).__name__} with sparse=True: its gradient holds the rows that a batch "
                "looks up, and their number depends on its values",
                hint="advisor measure runs it as it is; with sparse=False it is traced, and takes more memory",
            )


def build_batch(workload: Workload, mode: FakeTensorMode) -> Any:
    """One micro-batch as fake tensors: made under fake tensors, or for real where the user's code can't be."""
    size = workload.execution.micro_batch_size
    with accelerators_mean_cpu():
        try:
            with mode:
                batch = workload.make_batch(size)
        except Exception:  # numpy, .item(), ...: make it for real
            with _skip_large_fills():
                batch = fake_batch(workload.make_batch(size), mode)
    _refuse_sparse(batch)
    return batch


def _refuse_sparse(batch: Any) -> None:
    for tensor in pytree.tree_leaves(batch):
        if isinstance(tensor, torch.Tensor) and tensor.layout is not torch.strided:
            raise WorkloadError(
                f"the batch holds a {str(tensor.layout).removeprefix('torch.')} tensor of shape {tuple(tensor.shape)}, "
                "and what its kernels allocate depends on its values",
                hint="advisor measure runs it as it is; a dense one, as in --batch '(x, adj.to_dense())', is traced "
                "and takes more memory",
            )


def fake_batch(batch: Any, mode: FakeTensorMode) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: _to_fake(t, mode), batch)


def _to_fake(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    return tensor if isinstance(tensor, FakeTensor) else mode.from_tensor(tensor, static_shapes=True)


def make_fake(model: torch.nn.Module, mode: FakeTensorMode, *, channels_last: bool = False) -> None:
    """Replace every tensor the model holds by a fake one, in place; tied and aliased tensors stay so."""
    memo: dict[int, torch.Tensor] = {}

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        if (known := memo.get(id(tensor))) is None:
            known = memo[id(tensor)] = _fake_like(tensor, mode, channels_last=channels_last)
        return known

    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = convert(tensor)  # type: ignore[assignment]
        for name, value in list(module.__dict__.items()):
            if name not in ("_parameters", "_buffers", "_modules"):
                module.__dict__[name] = _convert_nested(value, convert)


def _fake_like(tensor: torch.Tensor, mode: FakeTensorMode, *, channels_last: bool) -> torch.Tensor:
    if channels_last and tensor.dim() == 4:
        with mode:
            fake = torch.empty(
                tensor.shape, dtype=tensor.dtype, memory_format=torch.channels_last, requires_grad=tensor.requires_grad
            )
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(fake.detach(), requires_grad=tensor.requires_grad)
        return fake
    return mode.from_tensor(tensor, static_shapes=True)


def _convert_nested(value: Any, convert: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Tensors in a plain attribute: bare, or in a list, tuple or dict."""
    if isinstance(value, torch.Tensor):
        return convert(value)
    if type(value) in (list, tuple) and any(isinstance(item, torch.Tensor) for item in value):
        return type(value)(convert(item) if isinstance(item, torch.Tensor) else item for item in value)
    if type(value) is dict and any(isinstance(item, torch.Tensor) for item in value.values()):
        return {key: convert(item) if isinstance(item, torch.Tensor) else item for key, item in value.items()}
    return value
