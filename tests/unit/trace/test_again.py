"""A micro-batch written down a second time must be what running it again would have given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from advisor.trace import _again
from advisor.trace.records import OpRecord, StepTrace, TraceTarget
from advisor.trace.tracer import trace_step
from advisor.workload.spec import Execution, Workload

CUDA = TraceTarget(device_type="cuda", compute_capability=(8, 0))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout(0.1))
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.stem(x).mean((2, 3)))  # type: ignore[no-any-return]


class Counting(Net):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) if self.calls == 1 else super().forward(x).relu()


class Keeping(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = super().forward(x)
        return self.last


def workload(model: type[nn.Module], **execution: Any) -> Workload:
    return Workload(
        build_model=model,
        make_batch=lambda size: torch.ones(size, 3, 8, 8),
        compute_loss=lambda model, batch: model(batch).square().mean(),
        make_optimizer=lambda model: torch.optim.AdamW(model.parameters()),
        execution=Execution(micro_batch_size=4, **execution),
    )


def steady(trace: StepTrace) -> tuple[list[object], list[object]]:
    """Operators and memory of the steady step, storages numbered as they are met."""
    number: dict[int, int] = {}
    events = [
        (e.position, e.is_alloc, number.setdefault(e.storage, len(number)), trace.storages[e.storage].nbytes,
         trace.storages[e.storage].category, trace.storages[e.storage].parameter)
        for e in trace.events
        if e.position >= trace.steady_start
    ]  # fmt: skip

    def told(op: OpRecord) -> object:
        refs = [
            [(number.get(r.storage), r.shape, r.dtype, r.strides) for r in refs] for refs in (op.inputs, op.outputs)
        ]
        return op.name, op.phase, op.module, op.microbatch, op.flops, op.attributes, refs

    return events, [told(op) for op in trace.ops[trace.steady_start :]]


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[_again.Microbatch]:
    """The micro-batches that were written down again."""
    seen: list[_again.Microbatch] = []
    repeat = _again.Microbatch.repeat

    def noted(self: _again.Microbatch) -> torch.Tensor:
        seen.append(self)
        return repeat(self)

    monkeypatch.setattr(_again.Microbatch, "repeat", noted)
    return seen


@pytest.mark.parametrize(
    "execution",
    [
        {},
        {"num_microbatches": 3},
        {"autocast_dtype": "bfloat16"},
        {"autocast_dtype": "float16", "grad_scaler": True, "num_microbatches": 2},
        {"offload_activations": True},
    ],
    ids=str,
)
def test_it_is_what_running_it_again_gives(
    execution: dict[str, Any], repeated: list[_again.Microbatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = trace_step(workload(Net, **execution), CUDA)
    assert len(repeated) == 1
    monkeypatch.setattr(_again.Microbatch, "repeats", False)
    run = trace_step(workload(Net, **execution), CUDA)
    assert len(repeated) == 1
    assert steady(written) == steady(run)


@pytest.mark.parametrize("model", [Counting, Keeping])
def test_a_step_that_leaves_something_behind_runs_again(
    model: type[nn.Module], repeated: list[_again.Microbatch]
) -> None:
    trace = trace_step(workload(model), CUDA)
    assert not repeated
    relus = [op for op in trace.ops[trace.steady_start :] if op.name == "aten.relu.default"]
    assert len(relus) == (model is Counting)


def test_an_optimizer_in_backward_runs_again(repeated: list[_again.Microbatch]) -> None:
    trace_step(workload(Net, optimizer_in_backward=True), CUDA)
    assert not repeated
