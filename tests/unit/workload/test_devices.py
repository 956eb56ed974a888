"""Code written for a GPU, built and stepped where there is none."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from advisor.trace.records import TraceTarget
from advisor.trace.tracer import trace_step
from advisor.workload.devices import accelerators_mean_cpu
from advisor.workload.spec import Workload


class NeedsCuda(nn.Module):
    def __init__(self, device: str = "cuda") -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8, device=device).cuda()
        self.device = torch.device("cuda:0")
        self.table = torch.arange(8).cuda()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.device) + torch.zeros(8, device="cuda", pin_memory=True)
        mask = torch.cuda.FloatTensor(8).fill_(1.0)
        with torch.autocast("cuda"):
            out = self.layer(x.pin_memory() * mask)
        assert out.dtype is torch.float16
        return out.float() + self.table.type("torch.cuda.FloatTensor")


def workload() -> Workload:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        result: torch.Tensor = model(batch.cuda(non_blocking=True)).mean()
        return result

    return Workload(
        build_model=NeedsCuda,
        make_batch=lambda size: torch.randn(size, 8, device="cuda"),
        compute_loss=loss,
        make_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    )


def test_a_step_is_traced() -> None:
    trace = trace_step(workload(), TraceTarget(device_type="cuda", compute_capability=(8, 0)))
    assert sum(record.shape[0] for record in trace.parameters) == 16


def test_everything_is_put_back() -> None:
    before = (torch.cuda.FloatTensor, torch.autocast.__init__)
    with accelerators_mean_cpu():
        assert torch.cuda.LongTensor is torch.LongTensor
        assert torch.zeros(2, device="meta").is_meta
    assert before == (torch.cuda.FloatTensor, torch.autocast.__init__)
