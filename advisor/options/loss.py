"""Cross-entropy of large logits in chunks of rows, the gradient written over the logits.

Effect: of the 2-3 copies of tokens * vocabulary (MEM-4) one stays: 8192 x 128256 float32 is 3.914 GiB a copy. torchtune
with a chunked loss: 51.0 -> 42.9 GiB, +2 % speed. Same loss and gradient. Kernels that make the logits themselves in
chunks (Cut Cross-Entropy, arXiv:2411.09009; Liger-Kernel) save the last copy too; they need the head's weight.

Found in the trace: the logits of `nll_loss` come straight from a product and hold more elements than its input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from advisor.options.base import USUAL_NAMES, Facts, Names, Option, Risk, unknown_value
from advisor.trace.records import OpRecord, TensorRef
from advisor.workload.spec import Workload

_COPIES = ("aten._to_copy.", "aten.clone.")


class Loss(Option):
    name = "loss"
    order = 60
    title = "Loss implementation"

    def values(self, facts: Facts) -> Sequence[str]:
        return ("as-written", "chunked") if self.why_not(facts) is None else ("as-written",)

    def why_not(self, facts: Facts) -> str | None:
        ops = facts.forward_ops()
        if not any(op.name.startswith("aten.nll_loss_forward.") for op in ops):
            return "the loss is not a cross-entropy of class numbers"
        logits = next((op.inputs[0] for op in reversed(ops) if op.name.startswith("aten._log_softmax.")), None)
        if logits is None or len(logits.shape) != 2:
            return "the loss is not a cross-entropy of rows of logits"
        product = _product_behind(logits, ops)
        if product is None:
            return "the logits are worked on between the last product and the loss"
        if logits.numel <= product.inputs[-2].numel:  # (input, weight) end the inputs of mm and addmm
            return "the logits are no larger than the features they are made from"
        return None

    def risk(self, value: str) -> Risk:
        return Risk.NOTHING

    def apply(self, workload: Workload, value: str) -> Workload:
        if value == "as-written":
            return workload
        if value != "chunked":
            raise unknown_value(self, value, ("as-written", "chunked"))

        def compute_loss(model: Any, batch: Any) -> Any:
            from advisor.workload.techniques.cross_entropy import chunked_cross_entropy

            with chunked_cross_entropy():
                return workload.compute_loss(model, batch)

        return replace(workload, compute_loss=compute_loss)

    def snippet(self, value: str, names: Names = USUAL_NAMES) -> str:
        return _SNIPPET if value == "chunked" else ""


def _product_behind(logits: TensorRef, ops: list[OpRecord]) -> OpRecord | None:
    """The product whose output the logits are, or a copy of."""
    storage = logits.storage
    for op in reversed(ops):
        if not any(ref.storage == storage for ref in op.outputs):
            continue
        if op.name.startswith(_COPIES):
            storage = op.inputs[0].storage
        else:
            return op if op.flops and len(op.inputs) >= 2 else None
    return None


_SNIPPET = """\
from liger_kernel.transformers import LigerCrossEntropyLoss  # pip install liger-kernel

loss = LigerCrossEntropyLoss()(logits.view(-1, logits.size(-1)), labels.view(-1))  # the gradient replaces the logits
"""
OPTION = Loss()
