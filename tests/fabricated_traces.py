"""Traces made by hand: plain data, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from advisor.trace.records import (
    Attribute,
    BlockChain,
    Category,
    MemoryEvent,
    OpRecord,
    OptimizerRecord,
    ParameterRecord,
    Phase,
    StepTrace,
    StorageRecord,
    TensorRef,
)
from advisor.units import dtype_bytes


def dense(storage: int, shape: tuple[int, ...], dtype: str) -> TensorRef:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return TensorRef(storage, shape, dtype, tuple(reversed(strides)))


@dataclass
class TraceBuilder:
    """Writes a trace operator by operator, as the recorder would."""

    ops: list[OpRecord] = field(default_factory=list)
    storages: list[StorageRecord] = field(default_factory=list)
    events: list[MemoryEvent] = field(default_factory=list)
    parameters: list[ParameterRecord] = field(default_factory=list)
    steady_start: int = 0

    def tensor(
        self,
        shape: tuple[int, ...],
        dtype: str = "float32",
        category: Category = Category.TEMPORARY,
        *,
        module: str = "",
        on_host: bool = False,
    ) -> TensorRef:
        persistent = category in (Category.PARAMETER, Category.OPTIMIZER_STATE)
        ref = dense(len(self.storages), shape, dtype)
        nbytes = ref.numel * dtype_bytes(dtype)
        self.storages.append(StorageRecord(nbytes, category, module, persistent, on_host))
        self.events.append(MemoryEvent(len(self.ops), ref.storage, is_alloc=True))
        return ref

    def free(self, *refs: TensorRef) -> None:
        self.events += [MemoryEvent(len(self.ops), ref.storage, is_alloc=False) for ref in refs]

    def op(
        self,
        name: str,
        inputs: tuple[TensorRef, ...],
        outputs: tuple[TensorRef, ...],
        *,
        phase: Phase = Phase.FORWARD,
        module: str = "",
        flops: int = 0,
        microbatch: int = 0,
        **attributes: Attribute,
    ) -> None:
        self.ops.append(OpRecord(name, phase, module, microbatch, inputs, outputs, flops, tuple(attributes.items())))

    def build(self, *, num_microbatches: int = 1, block_chains: tuple[BlockChain, ...] = ()) -> StepTrace:
        return StepTrace(
            ops=tuple(self.ops),
            steady_start=self.steady_start,
            storages=tuple(self.storages),
            events=tuple(self.events),
            parameters=tuple(self.parameters),
            modules=(),
            block_chains=block_chains,
            optimizer=OptimizerRecord("SGD", "foreach", 0.1),
            device_type="cuda",
            autocast_dtype=None,
            micro_batch_size=1,
            num_microbatches=num_microbatches,
            tokens_per_sample=None,
        )


def linear_chain(*, batch: int = 512, width: int = 1024, layers: int = 3, dtype: str = "float16") -> StepTrace:
    """Two steps of `layers` square linear layers with momentum: forward, backward in reverse, foreach update."""
    builder = TraceBuilder()
    names = [f"layers.{i}" for i in range(layers)]
    weights = [builder.tensor((width, width), dtype, Category.PARAMETER, module=name) for name in names]
    for name, weight in zip(names, weights, strict=True):
        builder.parameters.append(ParameterRecord(f"{name}.weight", weight.shape, dtype, True, weight.storage))
    states: list[TensorRef] = []
    for step in range(2):
        builder.steady_start = len(builder.ops) if step else 0
        _linear_step(builder, names, weights, states, batch=batch, dtype=dtype)
    return builder.build(block_chains=(BlockChain(tuple(names), "Linear"),))


def _linear_step(
    builder: TraceBuilder,
    names: list[str],
    weights: list[TensorRef],
    states: list[TensorRef],
    *,
    batch: int,
    dtype: str,
) -> None:
    width = weights[0].shape[0]
    flops = 2 * batch * width * width
    inputs = [builder.tensor((batch, width), dtype, Category.INPUT)]
    for name, weight in zip(names, weights, strict=True):
        out = builder.tensor((batch, width), dtype, Category.ACTIVATION, module=name)
        builder.op("aten.mm.default", (inputs[-1], weight), (out,), module=name, flops=flops)
        inputs.append(out)
    grad, grads = builder.tensor((batch, width), dtype), []
    builder.op("aten.ones_like.default", (inputs[-1],), (grad,), phase=Phase.BACKWARD, pointwise=True)
    for name, weight, data in zip(reversed(names), reversed(weights), reversed(inputs[:-1]), strict=True):
        made = builder.tensor((width, width), dtype, Category.GRADIENT, module=name)
        builder.op("aten.mm.default", (data, grad), (made,), phase=Phase.BACKWARD, module=name, flops=flops)
        below = builder.tensor((batch, width), dtype, module=name)
        builder.op("aten.mm.default", (grad, weight), (below,), phase=Phase.BACKWARD, module=name, flops=flops)
        builder.free(grad, inputs.pop())
        grads.append(made)
        grad = below
    builder.free(grad, *inputs)
    if not states:
        states += [builder.tensor(w.shape, dtype, Category.OPTIMIZER_STATE) for w in weights]
    builder.op(
        "aten._foreach_add_.List", (*weights, *grads, *states), (*weights, *states), phase=Phase.OPTIMIZER,
        num_tensors=len(weights),
    )  # fmt: skip
    builder.free(*grads)
