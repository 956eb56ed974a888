"""What an option may know, made by hand: a device, and the trace of a small transformer. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fabricated_traces import TraceBuilder

from advisor.hardware.profile import DeviceProfile, Sourced
from advisor.options.base import Facts
from advisor.trace.records import (
    BlockChain,
    Category,
    ModuleRecord,
    OptimizerRecord,
    ParameterRecord,
    StepTrace,
    TensorRef,
)

TOKENS, WIDTH, HEADS, VOCABULARY = 64, 16, 2, 128


def a_device(**changes: Any) -> DeviceProfile:
    """An H100, unless changed."""
    profile = DeviceProfile(
        name="h100",
        title="NVIDIA H100",
        vendor="NVIDIA",
        architecture="Hopper",
        device_type="cuda",
        compute_capability=(9, 0),
        host_bandwidth=Sourced(value=64e9, source="made up"),
        native_bfloat16=True,
    )
    return replace(profile, **changes)


V100 = a_device(name="v100", title="NVIDIA V100", compute_capability=(7, 0), native_bfloat16=False)
CPU = a_device(name="cpu", title="a CPU", device_type="cpu", compute_capability=None, host_bandwidth=None)


def transformer_trace(
    *, num_blocks: int = 4, dtype: str = "float32", writes_scores: bool = True, vocabulary: int = VOCABULARY
) -> StepTrace:
    """Forward and nothing else: what options look at. Modules `blocks.i.attention`, `blocks.i.up` and `head`."""
    builder = TraceBuilder()
    hidden = builder.tensor((TOKENS, WIDTH), dtype, Category.ACTIVATION)
    modules = [ModuleRecord("", "GPT", 0)]
    for i in range(num_blocks):
        modules += [
            ModuleRecord(f"blocks.{i}", "Block", 0),
            ModuleRecord(f"blocks.{i}.attention", "Attention", 0),
            ModuleRecord(f"blocks.{i}.up", "Linear", 0),
        ]
        if writes_scores:
            _attention(builder, f"blocks.{i}.attention", hidden, dtype)
        hidden = _linear(builder, f"blocks.{i}.up", hidden, WIDTH, dtype)
    logits = _linear(builder, "head", hidden, vocabulary, dtype)
    log_probabilities = builder.tensor((TOKENS, vocabulary), dtype, Category.ACTIVATION)
    builder.op("aten._log_softmax.default", (logits,), (log_probabilities,))
    builder.op("aten.nll_loss_forward.default", (log_probabilities,), (builder.tensor((), dtype),))
    chain = BlockChain(tuple(f"blocks.{i}" for i in range(num_blocks)), "Block")
    return replace(
        builder.build(block_chains=(chain,) if num_blocks else ()),
        modules=(*modules, ModuleRecord("head", "Linear", 0)),
        optimizer=OptimizerRecord("AdamW", "foreach", 1e-3),
    )


def _linear(builder: TraceBuilder, module: str, x: TensorRef, width: int, dtype: str) -> TensorRef:
    weight = builder.tensor((x.shape[1], width), dtype, Category.PARAMETER, module=module)
    builder.parameters.append(ParameterRecord(f"{module}.weight", weight.shape, dtype, True, weight.storage))
    out = builder.tensor((x.shape[0], width), dtype, Category.ACTIVATION, module=module)
    builder.op("aten.mm.default", (x, weight), (out,), module=module, flops=2 * x.numel * width)
    return out


def _attention(builder: TraceBuilder, module: str, x: TensorRef, dtype: str) -> None:
    scores = builder.tensor((HEADS, TOKENS, TOKENS), dtype, module=module)
    shares = builder.tensor((HEADS, TOKENS, TOKENS), dtype, Category.ACTIVATION, module=module)
    out = builder.tensor((HEADS, TOKENS, WIDTH // HEADS), dtype, Category.ACTIVATION, module=module)
    builder.op("aten.bmm.default", (x, x), (scores,), module=module, flops=1)
    builder.op("aten._softmax.default", (scores,), (shares,), module=module)
    builder.op("aten.bmm.default", (shares, x), (out,), module=module, flops=1)


def some_facts(trace: StepTrace | None = None, device: DeviceProfile | None = None, **changes: Any) -> Facts:
    return Facts(trace=trace or transformer_trace(), device=device or a_device(), **changes)
