from __future__ import annotations

from dataclasses import replace

import pytest
from fabricated_traces import TraceBuilder

from advisor.cost.allocator import Scratch
from advisor.cost.scratch import scratch
from advisor.trace.records import Phase, StepTrace


def convolution(*, grad_input: bool = True) -> StepTrace:
    """Input 2x3x8x8 and output 2x4x8x8 in float16: 768 and 1024 bytes; a pointwise operator before them."""
    builder = TraceBuilder()
    image = builder.tensor((2, 3, 8, 8), "float16")
    builder.op("aten.relu_.default", (image,), (image,))
    weight = builder.tensor((4, 3, 3, 3), "float16")
    out = builder.tensor((2, 4, 8, 8), "float16")
    builder.op("aten.convolution.default", (image, weight), (out,))
    gradient = builder.tensor((4, 3, 3, 3), "float16")
    builder.op(
        "aten.convolution_backward.default",
        (out, image, weight),
        (gradient,),
        phase=Phase.BACKWARD,
        grad_input=grad_input,
        grad_weight=True,
    )
    builder.free(out)
    return replace(builder.build(), cudnn_benchmark=True)


@pytest.mark.parametrize("scale, nbytes", [(1, 768 + 1024), (2, 2 * (768 + 1024))])
def test_each_kernel_takes_input_and_output(scale: int, nbytes: int) -> None:
    # events: image, weight, out | gradient, free
    forward = Scratch(kernels=(nbytes,), empties_cache=True)
    backward = Scratch(kernels=(nbytes, nbytes), empties_cache=True)
    assert scratch(convolution(), scale) == {2: forward, 3: backward}


def test_the_first_layer_has_no_gradient_of_its_input() -> None:
    assert scratch(convolution(grad_input=False), 1)[3].kernels == (768 + 1024,)


def test_shapes_that_were_met_before_are_not_tried_again() -> None:
    once = convolution()
    ops = once.ops + once.ops
    events = once.events + tuple(replace(event, position=event.position + len(once.ops)) for event in once.events)
    taken = scratch(replace(once, ops=ops, events=events), 1)
    assert [each.empties_cache for each in taken.values()] == [True, True, False, False]


def test_without_the_benchmark_nothing_is_tried() -> None:
    taken = scratch(replace(convolution(), cudnn_benchmark=False), 1)
    assert [each.empties_cache for each in taken.values()] == [False, False]


def test_a_step_without_convolutions_takes_none() -> None:
    builder = TraceBuilder()
    data = builder.tensor((4,), "float16")
    builder.op("aten.relu_.default", (data,), (data,))
    assert scratch(builder.build(), 1) == {}
