"""CPU fake tensors behave as the target's do, and as before once the context is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from advisor.trace._semantics import attention_kernel, target_semantics
from advisor.trace.records import Phase, StepTrace, TraceTarget
from advisor.trace.tracer import trace_step
from advisor.workload.spec import Execution, Workload

CUDA = TraceTarget(device_type="cuda", compute_capability=(8, 0))
CPU = TraceTarget(device_type="cpu")
Run = Callable[[torch.Tensor], Any]

# §4.3 of the optimisation notes, from ATen/autocast_mode.h of torch 2.13.
FLOAT32: dict[str, Run] = {
    "layer_norm": lambda x: functional.layer_norm(x, (8,)),
    "rms_norm": lambda x: functional.rms_norm(x, (8,)),
    "group_norm": lambda x: functional.group_norm(x, 2),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "exp": torch.exp,
    "log": torch.log,
    "pow": lambda x: x.pow(2),
    "pow_tensor": lambda x: x.pow(x),
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "softplus": functional.softplus,
    "sum": torch.sum,
    "sum_of_a_dimension": lambda x: x.sum(0),
    "prod": torch.prod,
    "cumsum": lambda x: x.cumsum(0),
    "norm": lambda x: torch.linalg.vector_norm(x),
    "logsumexp": lambda x: x.logsumexp(0),
    "cosine_similarity": lambda x: functional.cosine_similarity(x, x),
    "cross_entropy": lambda x: functional.cross_entropy(x, torch.zeros(8, dtype=torch.int64)),
    "mse_loss": lambda x: functional.mse_loss(x, x),
    "bce_with_logits": lambda x: functional.binary_cross_entropy_with_logits(x, x),
    "upsample": lambda x: functional.interpolate(x[None], scale_factor=2),
}
LOW: dict[str, Run] = {
    "matmul": lambda x: x.float() @ x.float(),
    "mm": lambda x: x.float().mm(x.float()),
    "mv": lambda x: x.float().mv(x.float()[0]),
    "linear": lambda x: functional.linear(x.float(), x.float()),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x.float(), x.float()),
    "conv1d": lambda x: functional.conv1d(x.float()[None], torch.ones(4, 8, 3)),
    "conv2d": lambda x: functional.conv2d(x.float()[None, None], torch.ones(4, 1, 3, 3)),
    "conv_transpose2d": lambda x: functional.conv_transpose2d(x.float()[None, None], torch.ones(1, 4, 3, 3)),
    "attention": lambda x: functional.scaled_dot_product_attention(*[x.float()[None, None]] * 3),
    "gelu": functional.gelu,  # unlisted: follows its input
    "mean": torch.mean,
    "batch_norm": lambda x: functional.batch_norm(x, None, None, training=True),
}
WIDEST: dict[str, Run] = {
    "addcmul": lambda x: torch.addcmul(x, x, x.float()),
    "atan2": lambda x: torch.atan2(x, x.float()),
    "scatter_add": lambda x: x.scatter_add(0, torch.zeros(8, 8, dtype=torch.int64), x.float()),
}


def dtypes(runs: dict[str, Run], target: TraceTarget) -> dict[str, torch.dtype]:
    with target_semantics(target), FakeTensorMode():
        return autocast_dtypes(runs)


def autocast_dtypes(runs: dict[str, Run]) -> dict[str, torch.dtype]:
    x = torch.ones(8, 8, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return {name: run(x).dtype for name, run in runs.items()}


def test_cuda_autocast_keeps_in_float32() -> None:
    runs = FLOAT32 | WIDEST
    assert dtypes(runs, CUDA) == dict.fromkeys(runs, torch.float32)


def test_cuda_autocast_runs_in_low_precision() -> None:
    assert dtypes(LOW, CUDA) == dict.fromkeys(LOW, torch.bfloat16)


def test_cpu_autocast_is_left_alone() -> None:
    """Measured operator by operator, §4.3: most stays in bfloat16, losses do not; also after a CUDA target."""
    expected = dict.fromkeys(("softmax", "log_softmax", "layer_norm", "exp", "pow", "sum", "cumsum"), torch.bfloat16)
    expected |= dict.fromkeys(("cross_entropy", "mse_loss", "bce_with_logits", "prod"), torch.float32)
    runs = {name: FLOAT32[name] for name in expected}
    assert dtypes(runs, CPU) == expected
    assert dtypes(runs, CUDA) == dict.fromkeys(runs, torch.float32)
    assert autocast_dtypes(runs) == expected


def test_nothing_stays_registered_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), target_semantics(CUDA):
        raise ZeroDivisionError
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("aten::softmax.int", "AutocastCPU")
    x = torch.randn(1, 1, 4, 4, requires_grad=True)
    out = functional.scaled_dot_product_attention(x, x, x)
    assert torch.allclose(out, (x @ x.mT / 2).softmax(-1) @ x, atol=1e-5)
    assert functional.batch_norm(x, None, None, training=True).grad_fn.name() == "NativeBatchNormBackward0"


def names(trace: StepTrace, phase: Phase | None = None) -> list[str]:
    return [op.name.removeprefix("aten.") for op in trace.steady_ops() if phase is None or op.phase is phase]


def step(
    build: Callable[[], nn.Module],
    shape: tuple[int, ...],
    target: TraceTarget = CUDA,
    optimizer: Any = None,
    **execution: Any,
) -> StepTrace:
    return trace_step(
        Workload(
            build_model=build,
            make_batch=lambda size: torch.zeros(size, *shape),
            compute_loss=lambda model, batch: _first(model(batch)).float().mean(),
            make_optimizer=lambda model: (optimizer or torch.optim.SGD)(model.parameters(), lr=0.1),
            execution=Execution(micro_batch_size=2, **execution),
        ),
        target,
    )


def _first(output: Any) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output


class Softmax(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).softmax(-1)


def test_softmax_of_half_casts_inside_its_kernel() -> None:
    """`at::softmax` with half in and float out is one kernel on CUDA (`half_to_float`); bfloat16 is cast before."""
    half = step(lambda: Softmax(8, 8), (8,), autocast_dtype="float16")
    softmax = next(op for op in half.ops if op.name == "aten._softmax.default")
    assert (softmax.inputs[0].dtype, softmax.outputs[0].dtype) == ("float16", "float32")
    bfloat16 = step(lambda: Softmax(8, 8), (8,), autocast_dtype="bfloat16")
    softmax = next(op for op in bfloat16.ops if op.name == "aten._softmax.default")
    assert (softmax.inputs[0].dtype, softmax.outputs[0].dtype) == ("float32", "float32")


# ---- attention ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "kernel"),
    [
        ({}, "flash"),
        ({"dtype": torch.float16}, "flash"),
        ({"dtype": torch.float32}, "efficient"),
        ({"dtype": torch.float64}, "math"),
        ({"masked": True}, "efficient"),
        ({"head_dim": 256, "value_dim": 256}, "flash"),
        ({"head_dim": 264, "value_dim": 264}, "efficient"),
        ({"value_dim": 32}, "efficient"),
        ({"gqa": True}, "flash"),
        ({"gqa": True, "masked": True}, "math"),
        ({"gqa": True, "dtype": torch.float32}, "math"),
        ({"capability": (7, 0)}, "math"),  # no bfloat16 before Ampere
        ({"capability": (7, 0), "dtype": torch.float16}, "efficient"),
        ({"capability": (7, 5), "dtype": torch.float32}, "efficient"),
        ({"capability": (8, 6), "head_dim": 224, "value_dim": 224}, "efficient"),
        ({"capability": (8, 6), "head_dim": 192, "value_dim": 192}, "flash"),
        ({"capability": (8, 6), "head_dim": 224, "value_dim": 224, "trains": False}, "flash"),
        ({"capability": (9, 0), "head_dim": 224, "value_dim": 224}, "flash"),
        ({"capability": (8, 9), "head_dim": 256, "value_dim": 256}, "flash"),
        ({"capability": (8, 7), "head_dim": 256, "value_dim": 256, "dropout": True}, "efficient"),
        ({"capability": (12, 0), "head_dim": 256, "value_dim": 256, "dropout": True}, "efficient"),
        ({"dropout": True}, "flash"),
        ({"causal_rectangle": True}, "efficient"),
        ({"capability": None}, "flash"),  # ROCm
        ({"device_type": "cpu"}, "math"),
        ({"device_type": "mps"}, "math"),
    ],
    ids=str,
)
def test_attention_kernel(changes: dict[str, Any], kernel: str) -> None:
    case: dict[str, Any] = {
        "device_type": "cuda",
        "capability": (8, 0),
        "dtype": torch.bfloat16,
        "head_dim": 64,
        "value_dim": 64,
        "masked": False,
        "gqa": False,
        "trains": True,
        **changes,
    }
    target = TraceTarget(device_type=case.pop("device_type"), compute_capability=case.pop("capability"))
    assert attention_kernel(target, **case) == kernel


class Attention(nn.Module):
    """GPT-2's, with dropout on the scores."""

    def __init__(self, dropout: float = 0.1, mask: bool = False) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.dropout, self.mask = dropout, mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (2, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool) if self.mask else None
        out = functional.scaled_dot_product_attention(q, k, v, mask, self.dropout, is_causal=mask is None)
        return functional.dropout(self.out(out.transpose(1, 2).flatten(2)), self.dropout)


LENGTH = 128


def _square(trace: StepTrace) -> list[str]:
    """Operators that put out a matrix of length x length for each head."""
    return [
        op.name for op in trace.ops for ref in op.outputs if ref.shape[-2:] == (LENGTH, LENGTH) and len(ref.shape) > 2
    ]


@pytest.mark.parametrize(("autocast", "kernel"), [("bfloat16", "flash"), (None, "efficient")])
def test_attention_with_dropout_holds_no_square_matrix(autocast: str | None, kernel: str) -> None:
    trace = step(Attention, (LENGTH, 32), autocast_dtype=autocast)
    assert not _square(trace)
    ops = [name for name in names(trace) if "scaled_dot_product" in name]
    assert ops == [
        f"_scaled_dot_product_{kernel}_attention.default",
        f"_scaled_dot_product_{kernel}_attention_backward.default",
    ]
    forward = next(op for op in trace.ops if op.attribute("kernel"))
    assert forward.attribute("kernel") == kernel
    assert forward.attribute("is_causal") is True


def test_attention_on_the_cpu_with_dropout_does() -> None:
    assert _square(step(Attention, (LENGTH, 32), target=CPU))


def test_a_mask_takes_the_efficient_kernel() -> None:
    trace = step(lambda: Attention(mask=True), (LENGTH, 32), autocast_dtype="bfloat16")
    assert "_scaled_dot_product_efficient_attention.default" in names(trace)


# ---- batch norm, RNNs, optimizers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "autocast", "kernel"),
    [
        (CUDA, None, "cudnn"),
        (CUDA, "float16", "cudnn"),
        (CUDA, "bfloat16", "native"),  # cuDNN is not asked for bfloat16
        (CPU, None, "native"),
    ],
)
def test_batch_norm_of_images(target: TraceTarget, autocast: str | None, kernel: str) -> None:
    trace = step(convolution_and_norm, (3, 8, 8), target, autocast_dtype=autocast)
    assert [name for name in names(trace) if "batch_norm" in name] == [
        f"{kernel}_batch_norm.default",
        f"{kernel}_batch_norm_backward.default",
    ]


def convolution_and_norm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))


def two_linears() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))


def test_batch_norm_of_rows_is_not() -> None:
    trace = step(lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), (8,))
    assert "native_batch_norm.default" in names(trace, Phase.FORWARD)


def test_dropout_keeps_a_mask_of_bools() -> None:
    trace = step(lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)), (8,), autocast_dtype="float16")
    forward = next(op for op in trace.steady_ops() if "dropout" in op.name)
    assert forward.name == "aten.native_dropout.default"
    assert [(ref.shape, ref.dtype) for ref in forward.outputs] == [((2, 8), "float16"), ((2, 8), "bool")]
    assert "native_dropout_backward.default" in names(trace, Phase.BACKWARD)


@pytest.mark.parametrize(("probability", "target"), [(0.0, CUDA), (1.0, CUDA), (0.1, CPU)])
def test_dropout_of_nothing_and_everything_and_on_the_cpu_is_not_fused(probability: float, target: TraceTarget) -> None:
    trace = step(lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(probability)), (8,), target)
    assert not [name for name in names(trace) if "dropout" in name]


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_an_rnn_is_one_operator_each_way(kind: Any, gates: int) -> None:
    trace = step(lambda: kind(8, 16, num_layers=2, batch_first=True), (5, 8))
    forward, backward = (
        [op for op in trace.steady_ops() if op.phase is phase and op.module == "" and op.flops]
        for phase in (Phase.FORWARD, Phase.BACKWARD)
    )
    assert [op.name for op in forward] == ["aten._cudnn_rnn.default"]
    assert [op.name for op in backward] == ["aten._cudnn_rnn_backward.default"]
    # Two layers, batch 2, five steps, a multiply-add is two.
    assert forward[0].flops == 2 * 2 * 5 * gates * 16 * ((8 + 16) + (16 + 16))
    assert backward[0].flops == 2 * forward[0].flops
    assert dict(forward[0].attributes) | {
        "hidden_size": 16,
        "num_layers": 2,
        "bidirectional": False,
        "seq_len": 5,
    } == dict(forward[0].attributes)
    assert forward[0].outputs[0].shape == (2, 5, 16)


def test_a_bidirectional_lstm_in_bfloat16() -> None:
    trace = step(lambda: nn.LSTM(8, 16, bidirectional=True), (5, 8), autocast_dtype="bfloat16")
    forward = next(op for op in trace.ops if op.name == "aten._cudnn_rnn.default")
    assert (forward.outputs[0].shape, forward.outputs[0].dtype) == ((2, 5, 32), "bfloat16")


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_optimizers_take_lists_of_tensors_on_cuda_and_a_loop_on_the_cpu(kind: Any) -> None:
    cuda, cpu = step(two_linears, (8,), optimizer=kind), step(two_linears, (8,), target=CPU, optimizer=kind)
    assert all(name.startswith("_foreach_") for name in names(cuda, Phase.OPTIMIZER))
    assert next(op for op in cuda.steady_ops() if op.phase is Phase.OPTIMIZER).attribute("num_tensors") == 4
    assert not any(name.startswith("_foreach_") for name in names(cpu, Phase.OPTIMIZER))
    assert (cuda.optimizer.implementation, cpu.optimizer.implementation) == ("foreach", "for-loop")
