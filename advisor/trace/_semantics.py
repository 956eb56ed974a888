"""Make a trace of CPU fake tensors behave as on the target: autocast lists, attention, norms, dropout, RNNs, foreach.

Fake tensors on device `cuda` fail in backward where there is no driver, so the trace uses CPU fake tensors and
replaces, for as long as it lasts, the kernels whose choice differs: `torch.library` registrations on the dispatch keys
that CPU tensors carry. Nothing stays registered afterwards.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _foreach_utils

from advisor.trace import _cudnn_rnn
from advisor.trace.records import TraceTarget

# ATen/autocast_mode.h, torch 2.13, shared by every CUDA-like backend.
_LOWER_PRECISION = """_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
    conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm
    bmm chain_matmul linalg_multi_dot lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
    scaled_dot_product_attention""".split()
_FP32 = """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
    pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim
    nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d
    hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss
    multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
    binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d
    _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d
    _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d
    upsample_bicubic2d _upsample_bicubic2d_aa""".split()
_FP32_SET_OPT_DTYPE = """prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
    linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList""".split()
_PROMOTE = """addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add""".split()

_LOW = (torch.float16, torch.bfloat16)
_CPU_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


@contextlib.contextmanager
def target_semantics(target: TraceTarget) -> Iterator[None]:
    """CPU tensors behave as the target's would inside the context; a CPU target keeps CPU kernels."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_unpacked_sequences())
        if target.device_type == "cpu":
            yield
            return
        library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        stack.callback(library._destroy)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "overriding a previously registered kernel": that is the purpose
            _register(library, target)
        stack.enter_context(_foreach_by_default())
        yield


@contextlib.contextmanager
def _unpacked_sequences() -> Iterator[None]:
    """transformers looks at values to see whether rows hold several sequences, and takes fake tensors for packed ones.

    A batch that names no positions is not packed: then no mask is built and attention may take the flash kernel.
    """
    masking: Any = sys.modules.get("transformers.masking_utils")
    before = getattr(masking, "find_packed_sequence_indices", None)
    if before is None:
        yield
        return
    masking.find_packed_sequence_indices = lambda position_ids: None
    try:
        yield
    finally:
        masking.find_packed_sequence_indices = before


@contextlib.contextmanager
def _foreach_by_default() -> Iterator[None]:
    """Optimizers of CUDA parameters take the foreach path unless told otherwise; CPU ones the loop."""
    before = _foreach_utils._get_foreach_kernels_supported_devices
    # `torch.optim.optimizer` as an attribute is hidden by a function of that name.
    optimizer_module: Any = importlib.import_module("torch.optim.optimizer")
    types = optimizer_module._foreach_supported_types

    def supported() -> list[str]:
        return [*before(), "cpu"]

    _foreach_utils._get_foreach_kernels_supported_devices = supported
    optimizer_module._get_foreach_kernels_supported_devices = supported
    optimizer_module._foreach_supported_types = [*types, FakeTensor]
    try:
        yield
    finally:
        _foreach_utils._get_foreach_kernels_supported_devices = before
        optimizer_module._get_foreach_kernels_supported_devices = before
        optimizer_module._foreach_supported_types = types


def _register(library: Any, target: TraceTarget) -> None:
    _register_autocast(library)
    library.impl("scaled_dot_product_attention", _attention(target), "AutogradCPU")
    if target.device_type == "cuda":
        library.impl("batch_norm", _batch_norm, "AutogradCPU")
        library.impl("dropout", _dropout, "AutogradCPU")
        for name, kernel in _cudnn_rnn.KERNELS.items():
            library.impl(name, kernel, "AutogradCPU")


def _register_autocast(library: Any) -> None:
    for names, wrap in (
        (_LOWER_PRECISION, _in_autocast_dtype),
        (_FP32, _in_float32),
        (_FP32_SET_OPT_DTYPE, _with_float32_result),
        (_PROMOTE, _in_widest),
    ):
        for name in names:
            packet, _, overload = name.partition(".")
            if (op := getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)) is None:
                continue  # this torch has no such operator
            if wrap is _in_autocast_dtype and torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "AutocastCPU"):
                continue  # the CPU list agrees, and its own kernel caches the cast of a weight
            library.impl(op, wrap(op), "AutocastCPU")


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() and value.dtype != torch.float64 else value
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(item, dtype) for item in value)
    return value


def _without_autocast(op: Any, args: Any, kwargs: Any) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(_CPU_AUTOCAST):
        return op(*args, **kwargs)


def _in_autocast_dtype(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype("cpu")
        with torch._C._ExcludeDispatchKeyGuard(_CPU_AUTOCAST):
            return op(*_cast(args, dtype), **{k: _cast(v, dtype) for k, v in kwargs.items()})

    return kernel


def _in_float32(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_CPU_AUTOCAST):
            return op(*_cast(args, torch.float32), **{k: _cast(v, torch.float32) for k, v in kwargs.items()})

    return kernel


def _with_float32_result(op: Any) -> Callable[..., Any]:
    softmax = {"aten::softmax": torch.ops.aten._softmax, "aten::log_softmax": torch.ops.aten._log_softmax}
    fused = softmax.get(op._schema.name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        tensor = args[0]
        if tensor.dtype not in _LOW or kwargs.get("dtype") is not None or (fused and len(args) > 2):
            return _without_autocast(op, args, kwargs)
        if fused is not None and tensor.dtype is torch.float16:  # CUDA fuses the cast for half, not for bfloat16
            with torch._C._ExcludeDispatchKeyGuard(_CPU_AUTOCAST):
                return fused(tensor, args[1] % max(tensor.dim(), 1), True)
        return _without_autocast(op, args, {**kwargs, "dtype": torch.float32})

    return kernel


def _in_widest(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        widest = torch.float32 if any(t.dtype is torch.float32 for t in tensors) else torch.get_autocast_dtype("cpu")
        with torch._C._ExcludeDispatchKeyGuard(_CPU_AUTOCAST):
            return op(*_cast(args, widest), **{k: _cast(v, widest) for k, v in kwargs.items()})

    return kernel


def attention_kernel(
    target: TraceTarget,
    *,
    dtype: torch.dtype,
    head_dim: int,
    value_dim: int,
    masked: bool,
    gqa: bool,
    trains: bool,
    dropout: bool = False,
    causal_rectangle: bool = False,
) -> str:
    """Kernel that `scaled_dot_product_attention` takes on the target: "flash", "efficient" or "math".

    After `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp` of torch 2.13 (order: flash, efficient, math). Cards of
    compute capability 8.6 to 8.9 and 12 have too little shared memory for flash's backward at head sizes from 193 to
    224, and above that with dropout. cuDNN's kernel, which goes first on 9.0 and 10.0, holds what flash holds.

    Args:
        causal_rectangle: causal, with more keys than queries or fewer.
    """
    if target.device_type != "cuda":
        return "math"
    capability = target.compute_capability or (8, 0)  # ROCm: its flash kernel has the limits of Ampere's
    small_memory = (8, 6) <= capability <= (8, 9) or capability in ((12, 0), (12, 1))
    flash = (
        capability >= (8, 0)
        and dtype in _LOW
        and not masked
        and head_dim == value_dim
        and head_dim <= 256
        and not (small_memory and trains and (192 < head_dim <= 224 or (head_dim > 224 and dropout)))
        and not causal_rectangle
    )
    if flash:
        return "flash"
    bfloat16_missing = dtype is torch.bfloat16 and capability < (8, 0)
    if not gqa and dtype in (torch.float32, *_LOW) and not bfloat16_missing:
        return "efficient"
    return "math"


def _attention(target: TraceTarget) -> Callable[..., torch.Tensor]:
    aten = torch.ops.aten

    def kernel(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        trains = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        gqa = query.dim() == 4 and query.shape[1] != key.shape[1]
        choice = "math"
        if query.dim() == 4:
            choice = attention_kernel(
                target,
                dtype=query.dtype,
                head_dim=query.shape[-1],
                value_dim=value.shape[-1],
                masked=attn_mask is not None,
                gqa=gqa,
                trains=trains,
                dropout=dropout_p > 0,
                causal_rectangle=is_causal and query.shape[-2] != key.shape[-2],
            )
        scale = scale if scale is not None else query.shape[-1] ** -0.5
        if choice == "flash":
            size = value.shape[-1]
            if pad := -size % 8:  # the kernel wants head sizes in multiples of 8
                query, key, value = (torch.nn.functional.pad(t, (0, pad)) for t in (query, key, value))
            out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[
                0
            ]
            return out[..., :size] if pad else out  # type: ignore[no-any-return]
        if choice == "efficient":
            if attn_mask is not None:
                if attn_mask.dtype is torch.bool:
                    attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, float("-inf"))
                attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
            out = aten._scaled_dot_product_efficient_attention(
                query, key, value, attn_mask, trains, dropout_p, is_causal, scale=scale
            )
            return out[0]  # type: ignore[no-any-return]
        return aten._scaled_dot_product_attention_math(  # type: ignore[no-any-return]
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=gqa or enable_gqa
        )[0]

    return kernel


def _batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> torch.Tensor:
    """cuDNN where `_select_batch_norm_backend` (ATen/native/Normalization.cpp) takes it, else the native one."""
    cudnn = (
        weight is not None
        and bias is not None
        and torch.bfloat16 not in (input.dtype, weight.dtype)
        and (input.dtype is not torch.float16 or weight.dtype is torch.float32)
        and ((running_mean is not None and running_var is not None) or training)
        and input.dim() >= 3
        and input.shape[0] <= (880801 if training else 65535)
        and input.numel() < 2**31 - 1
    )
    if cudnn:
        out = torch.ops.aten.cudnn_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
    else:
        out = torch.ops.aten.native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
    return out[0]  # type: ignore[no-any-return]


def _dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """One kernel that keeps a mask of bools; the CPU keeps one in the dtype of the input (ATen/native/Dropout.cpp)."""
    if not train or p == 0 or input.numel() == 0:
        return input
    if p == 1:
        return input * input.new_zeros(())
    return torch.ops.aten.native_dropout(input, p, train)[0]  # type: ignore[no-any-return]
