"""Workspaces that cuDNN takes from the caching allocator for a convolution, where there is room for them.

A float16 kernel of the tensor cores works in channels_last, so a convolution in another layout copies its input and its
output first; split reductions of the weight gradient take their own. How much one takes depends on the algorithm that
cuDNN picks on the device, so several sizes are tried, in shares of the input and the output. None of them is measured.
Fragmentation near the limit is chaotic: small changes move which request finds no hole. So no single size decides.

With `torch.backends.cudnn.benchmark` a convolution whose shapes are new tries its algorithms and then empties the
allocator's cache (aten/src/ATen/native/cudnn/Conv_v7.cpp).
"""

from __future__ import annotations

from advisor.cost.allocator import Scratch
from advisor.trace.records import OpRecord, StepTrace

SCRATCH_SCALES = (0.5, 1.0, 2.0)


def scratch(trace: StepTrace, scale: float) -> dict[int, Scratch]:
    """By the last event that takes memory for a convolution: what its kernels take."""
    taken: dict[int, Scratch] = {}
    met: set[object] = set()
    for position, op in enumerate(trace.ops):
        if "convolution" in op.name and (kernels := _kernels(op, scale)):
            shapes = (op.name, *(ref.shape for ref in op.inputs), op.attributes)
            taken[position] = Scratch(kernels=kernels, empties_cache=trace.cudnn_benchmark and shapes not in met)
            met.add(shapes)
    last = {
        event.position: index for index, event in enumerate(trace.events) if event.is_alloc and event.position in taken
    }
    return {index: taken[position] for position, index in last.items()}


def _kernels(op: OpRecord, scale: float) -> tuple[int, ...]:
    """Forward is one kernel over input and output; backward one for each of the gradients of input and weight."""
    if op.name.startswith("aten.convolution_backward"):
        count = bool(op.attribute("grad_input")) + bool(op.attribute("grad_weight"))
        return (int(scale * (op.inputs[0].nbytes + op.inputs[1].nbytes)),) * count
    return (int(scale * (op.inputs[0].nbytes + op.outputs[0].nbytes)),)
