"""Precision: TF32 products, autocast, or parameters in bfloat16.

Effect (MEM-1, specs/optimisation.md 4.6, after the table of the optimi README): autocast shrinks activations only, by
36/64 for a transformer block in bf16; weights, gradients and Adam states stay 16 bytes a parameter. Pure bf16 takes 8,
with Kahan compensation 10. TF32 changes no bytes. fp16 needs a GradScaler: its smallest number is 6e-8.

Pure bf16 loses updates below 2**-9 of a weight (MP-1), which the compensation keeps (Zamirai 2020, arXiv:2010.06192).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from advisor.options.base import USUAL_NAMES, Facts, Names, Option, Risk, unknown_value
from advisor.workload.spec import Workload

_VALUES = ("fp32", "as-is", "tf32", "amp-bf16", "amp-fp16", "bf16-kahan", "bf16")
_COMPENSATED = ("Adam", "AdamW", "SGD")  # optimizers whose compensated form exists here
_FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})


class Precision(Option):
    name = "precision"
    order = 50  # after adapters are in place: their weights change dtype too
    title = "Precision"

    def values(self, facts: Facts) -> Sequence[str]:
        if _own_dtypes(facts) != {"float32"}:
            return ("as-is",)
        device = facts.device
        values = ["fp32"]
        if device.device_type == "cuda" and device.compute_capability and device.compute_capability >= (8, 0):
            values.append("tf32")
        if device.native_bfloat16:
            values.append("amp-bf16")
        if device.device_type != "cpu":
            values.append("amp-fp16")
        if device.native_bfloat16:
            if facts.trace.optimizer.type_name in _COMPENSATED:
                values.append("bf16-kahan")
            values.append("bf16")
        return values

    def why_not(self, facts: Facts) -> str | None:
        own = _own_dtypes(facts)
        if own != {"float32"}:
            return f"the workload sets its own precision: its products run in {', '.join(sorted(own))}"
        if len(self.values(facts)) == 1:
            return f"{facts.device.title} is not known to run bfloat16 natively"
        return None

    def risk(self, value: str) -> Risk:
        if value in ("fp32", "as-is"):
            return Risk.NOTHING
        return Risk.OPTIMISATION if value.startswith("bf16") else Risk.NUMERICS

    def apply(self, workload: Workload, value: str) -> Workload:
        match value:
            case "fp32" | "as-is":
                return workload
            case "tf32":
                return workload.with_execution(allow_tf32=True)
            case "amp-bf16":
                return workload.with_execution(autocast_dtype="bfloat16")
            case "amp-fp16":
                return workload.with_execution(autocast_dtype="float16", grad_scaler=True)
            case "bf16":
                return _in_bfloat16(workload)
            case "bf16-kahan":
                return _compensated(_in_bfloat16(workload))
        raise unknown_value(self, value, _VALUES)

    def snippet(self, value: str, names: Names = USUAL_NAMES) -> str:
        return _SNIPPETS[value].replace("OPTIMIZER", names.optimizer)


def _own_dtypes(facts: Facts) -> set[str]:
    """What the products of the forward pass run in; the parameters where there are none."""
    read = {ref.dtype for op in facts.forward_ops() if op.flops for ref in op.inputs} & _FLOATS
    return read or {parameter.dtype for parameter in facts.trace.parameters} & _FLOATS


def _in_bfloat16(workload: Workload) -> Workload:
    def build_model() -> Any:
        import torch

        from advisor.workload.techniques.conversion import convert_model

        return convert_model(workload.build_model(), torch.bfloat16)

    def converted(batch: Any) -> Any:
        import torch

        from advisor.workload.techniques.conversion import convert_batch

        return convert_batch(batch, torch.bfloat16)

    def converting(batches: Callable[[int], Iterable[Any]]) -> Callable[[int], Iterable[Any]]:
        return lambda size: map(converted, batches(size))

    return replace(
        workload,
        build_model=build_model,
        make_batch=lambda size: converted(workload.make_batch(size)),
        batches=None if workload.batches is None else converting(workload.batches),
    )


def _compensated(workload: Workload) -> Workload:
    def make_optimizer(model: Any) -> Any:
        from advisor.workload.techniques.compensated import with_compensation

        return with_compensation(workload.make_optimizer(model))

    return replace(workload, make_optimizer=make_optimizer)


_BF16 = """\
model = model.to(torch.bfloat16)  # and every floating-point input
"""
_SNIPPETS = {
    "fp32": "",
    "as-is": "",
    "tf32": 'torch.set_float32_matmul_precision("high")\n',
    "amp-bf16": """\
with torch.autocast(device.type, dtype=torch.bfloat16):
    loss = compute_loss(model, batch)
loss.backward()
""",
    "amp-fp16": """\
scaler = torch.amp.GradScaler(device.type)
with torch.autocast(device.type, dtype=torch.float16):
    loss = compute_loss(model, batch)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
""",
    "bf16": _BF16,
    "bf16-kahan": _BF16
    + """\
import optimi  # pip install torch-optimi

optimizer = optimi.OPTIMIZER(model.parameters(), lr=lr, kahan_sum=True)
""",
}
OPTION = Precision()
