"""FLOPs against torch's own registry where that is right, against a count by hand where it is not."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import flop_registry

from advisor.trace import flops
from advisor.trace.records import OpRecord, TraceTarget
from advisor.trace.tracer import trace_step
from advisor.workload.spec import Workload

aten = torch.ops.aten


def shapes(tensors: Any) -> list[tuple[int, ...]]:
    return [tuple(t.shape) for t in tensors if isinstance(t, torch.Tensor)]


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device="meta")


@pytest.mark.parametrize(
    ("packet", "args"),
    [
        (aten.mm, (ones(3, 5), ones(5, 7))),
        (aten.addmm, (ones(7), ones(3, 5), ones(5, 7))),
        (aten.bmm, (ones(2, 3, 5), ones(2, 5, 7))),
        (aten.baddbmm, (ones(2, 3, 7), ones(2, 3, 5), ones(2, 5, 7))),
        (aten.convolution, (ones(2, 4, 9, 8), ones(6, 4, 3, 2), None, [2, 1], [1, 0], [1, 1], False, [0, 0], 1)),
        (aten.convolution, (ones(2, 4, 9), ones(6, 4, 3), ones(6), [1], [0], [1], False, [0], 1)),
        (aten.convolution, (ones(2, 4, 9), ones(4, 6, 3), None, [2], [0], [1], True, [1], 1)),
    ],
    ids=lambda value: str(value) if not isinstance(value, tuple) else "",
)
def test_products_and_convolutions(packet: Any, args: tuple[Any, ...]) -> None:
    out = packet.default(*args)
    counted = flops.count(
        f"{packet}.default",
        shapes(args),
        shapes([out]),
        {"transposed": args[6], "groups": args[8]} if packet is aten.convolution else {},
    )
    assert counted == flop_registry[packet](*args, out_val=out) > 0


# Query, key and value; grouped queries have been expanded before the kernel.
ATTENTION = [
    (ones(2, 3, 10, 16), ones(2, 3, 12, 16), ones(2, 3, 12, 16)),
    (ones(2, 3, 10, 16), ones(2, 3, 12, 16), ones(2, 3, 12, 8)),
]


@pytest.mark.parametrize("kernel", ["flash", "efficient", "cudnn"])
@pytest.mark.parametrize("qkv", ATTENTION)
def test_attention(kernel: str, qkv: tuple[torch.Tensor, ...]) -> None:
    q, k, v = qkv
    out = ones(*q.shape[:-1], v.shape[-1])
    forward = f"_scaled_dot_product_{kernel}_attention"
    expected = flop_registry[getattr(aten, forward)](q, k, v, out_val=out)
    assert flops.count(f"aten.{forward}.default", shapes(qkv), shapes([out]), {}) == expected
    expected = flop_registry[getattr(aten, forward + "_backward")](out, q, k, v, out_val=(q, k, v))
    assert flops.count(f"aten.{forward}_backward.default", shapes((out, *qkv)), shapes(qkv), {}) == expected


def test_what_does_no_arithmetic_worth_counting_is_zero() -> None:
    assert flops.count("aten.add.Tensor", [(8, 8), (8, 8)], [(8, 8)], {}) == 0


# ---- convolutions by brute force ----------------------------------------------------------------------------------


def multiply_adds(
    image: tuple[int, ...], weight: tuple[int, ...], out: tuple[int, ...], groups: int, transposed: bool
) -> int:
    """Products of a convolution without padding, one by one: every (input, weight) pair that reaches an output."""
    batch, channels, *source = image
    per_group = channels // groups
    out_per_group = out[1] // groups
    count = 0
    walked = source if transposed else out[2:]
    for _sample, _position in itertools.product(range(batch), itertools.product(*map(range, walked))):
        for _group, _tap in itertools.product(range(groups), itertools.product(*map(range, weight[2:]))):
            count += per_group * out_per_group
    return count


CONVOLUTIONS = [
    pytest.param(
        dims, groups, stride, transposed, id=f"{dims}d-groups{groups}-stride{stride}-{'T' if transposed else ''}"
    )
    for dims, groups, stride, transposed in [
        (1, 1, 1, False),
        (1, 4, 2, False),
        (1, 2, 2, True),
        (2, 1, 2, False),
        (2, 2, 1, False),
        (2, 4, 1, False),  # depthwise
        (2, 4, 2, True),
        (3, 1, 1, False),
        (3, 4, 1, False),
        (3, 2, 2, True),
    ]
]


@pytest.mark.parametrize(("dims", "groups", "stride", "transposed"), CONVOLUTIONS)
def test_a_convolution_forward_and_backward(dims: int, groups: int, stride: int, transposed: bool) -> None:
    kind = getattr(torch.nn, f"Conv{'Transpose' if transposed else ''}{dims}d")
    forward, backward = convolutions(
        # The first layer's input needs no gradient, the second's does.
        lambda: torch.nn.Sequential(kind(4, 4, 3, stride=stride, groups=groups), kind(4, 8, 2, groups=groups)),
        (4, *[7, 6, 5][:dims]),
    )
    brute = [
        multiply_adds(op.inputs[0].shape, op.inputs[1].shape, op.outputs[0].shape, groups, transposed) for op in forward
    ]
    assert [op.flops for op in forward] == [2 * count for count in brute]
    assert [(op.attribute("grad_input"), op.attribute("grad_weight")) for op in backward] == [
        (True, True),
        (False, True),
    ]
    assert [op.flops for op in backward] == [2 * 2 * brute[1], 2 * brute[0]]
    for op in (*forward, *backward):
        assert (op.attribute("groups"), op.attribute("transposed"), op.attribute("dims")) == (groups, transposed, dims)


def convolutions(build: Any, shape: tuple[int, ...]) -> tuple[list[OpRecord], list[OpRecord]]:
    trace = trace_step(
        Workload(
            build_model=build,
            make_batch=lambda size: torch.zeros(size, *shape),
            compute_loss=lambda model, batch: model(batch).mean(),
            make_optimizer=lambda model: torch.optim.SGD(model.parameters()),
        ).with_execution(micro_batch_size=2),
        TraceTarget(device_type="cuda", compute_capability=(8, 0)),
    )
    ops = [op for op in trace.steady_ops() if op.name.startswith("aten.convolution")]
    return (
        [op for op in ops if op.name == "aten.convolution.default"],
        [op for op in ops if op.name == "aten.convolution_backward.default"],
    )


def test_brute_force_counts_what_a_convolution_multiplies() -> None:
    """The count by hand against arithmetic: a convolution of ones sums one per product."""
    for groups, transposed in [(1, False), (2, False), (4, True)]:
        image, weight = torch.ones(2, 4, 5, 4), torch.ones(4, 4 // groups, 3, 2)
        convolve = functional.conv_transpose2d if transposed else functional.conv2d
        out = convolve(image, weight, stride=2, groups=groups)
        shape = tuple(out.shape)
        assert out.sum().item() == multiply_adds((2, 4, 5, 4), (4, 4 // groups, 3, 2), shape, groups, transposed)


def test_rnn_on_the_cpu_counts_weights_and_not_states() -> None:
    trace = trace_step(
        Workload(
            build_model=lambda: torch.nn.LSTM(8, 16, batch_first=True),
            make_batch=lambda size: torch.zeros(size, 5, 8),
            compute_loss=lambda model, batch: model(batch)[0].mean(),
            make_optimizer=lambda model: torch.optim.SGD(model.parameters()),
        ).with_execution(micro_batch_size=2),
        TraceTarget(device_type="cpu"),
    )
    forward = sum(op.flops for op in trace.steady_ops() if op.phase == "forward")
    backward = sum(op.flops for op in trace.steady_ops() if op.phase == "backward")
    assert forward == 2 * 2 * 5 * 4 * 16 * (8 + 16)
    assert backward == 2 * forward
