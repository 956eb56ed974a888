"""Models of any size are built without their memory, and tied tensors stay tied."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from advisor.errors import WorkloadError
from advisor.workload.build import LARGE_NUMEL, build_batch, build_model, make_fake
from advisor.workload.spec import Workload

_TWO_BILLION = """
import resource
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from advisor.workload.build import build_model, make_fake
from advisor.workload.spec import Workload

def build():
    model = nn.Sequential(*(nn.Linear(11_000, 11_000) for _ in range(17)))
    for layer in model:
        nn.init.orthogonal_(layer.weight)
        layer.weight.data.mul_(0.5)
    return model

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = build_model(Workload(build_model=build, make_batch=None, compute_loss=None, make_optimizer=None))
make_fake(model, FakeTensorMode(allow_non_fake_inputs=True))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(sum(p.numel() for p in model.parameters()), (after - before) // 1024)
"""


def test_two_billion_parameters_take_no_memory() -> None:
    """In a process of its own: the peak of resident memory can't be reset."""
    run = subprocess.run([sys.executable, "-c", _TWO_BILLION], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    parameters, mebibytes = map(int, run.stdout.split())
    assert parameters > 2e9
    assert mebibytes < 300


def workload(build: Callable[[], nn.Module], make_batch: Callable[[int], Any] = torch.zeros) -> Workload:
    return Workload(
        build_model=build,
        make_batch=make_batch,
        compute_loss=lambda model, batch: torch.zeros(()),
        make_optimizer=lambda model: torch.optim.SGD(model.parameters()),
    ).with_execution(micro_batch_size=2)


def built(build: Callable[[], nn.Module], *, channels_last: bool = False) -> nn.Module:
    model = build_model(workload(build))
    make_fake(model, FakeTensorMode(allow_non_fake_inputs=True), channels_last=channels_last)
    return model


class StochasticDepth(nn.Module):
    """timm's and torchvision's way to a drop rate for each block."""

    def __init__(self) -> None:
        super().__init__()
        rates = [rate.item() for rate in torch.linspace(0, 0.3, 4)]
        self.blocks = nn.ModuleList(nn.Dropout(rate) for rate in rates)
        self.head = nn.Linear(2, 2)


def test_values_that_a_constructor_reads_are_there() -> None:
    model = build_model(workload(StochasticDepth))
    assert [block.p for block in model.blocks] == pytest.approx([0, 0.1, 0.2, 0.3])


def test_small_tensors_are_initialised_and_large_ones_are_not() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small, self.large = nn.Parameter(torch.empty(8)), nn.Parameter(torch.empty(LARGE_NUMEL))
            self.made = torch.ones(8), torch.ones(LARGE_NUMEL), torch.zeros(2, LARGE_NUMEL, dtype=torch.float16)
            nn.init.ones_(self.small)
            self.returned = nn.init.ones_(self.large)

    model = build_model(workload(Two))
    assert model.small.eq(1).all()
    assert model.made[0].eq(1).all()
    assert model.returned is model.large
    assert (model.made[2].shape, model.made[2].dtype) == ((2, LARGE_NUMEL), torch.float16)


def test_initialisers_are_themselves_again() -> None:
    before = nn.init.orthogonal_
    build_model(workload(StochasticDepth))
    assert nn.init.orthogonal_ is before
    weight = nn.init.constant_(torch.empty(LARGE_NUMEL), 3)
    assert weight.eq(3).all()


def test_a_model_comes_back_in_training_mode() -> None:
    assert build_model(workload(lambda: nn.Linear(2, 2).eval())).training


class Aliases(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        table = torch.arange(8.0)
        self.register_buffer("table", table)
        self.register_buffer("front", table[:4])
        self.plain = table
        self.nested = {"table": table, "number": 3}
        self.listed = [table, "text"]


def test_tied_and_aliased_tensors_stay_so() -> None:
    model = built(Aliases)
    assert all(isinstance(tensor, FakeTensor) for tensor in (*model.parameters(), *model.buffers()))
    assert model.head.weight is model.embed.weight
    assert isinstance(model.head.weight, nn.Parameter)
    assert model.front.untyped_storage()._cdata == model.table.untyped_storage()._cdata
    assert model.plain is model.table
    assert model.nested["table"] is model.table
    assert model.nested["number"] == 3
    assert model.listed[0] is model.table
    assert len(list(model.parameters())) == 1


def test_weights_of_an_rnn_are_those_it_runs_with() -> None:
    model = built(lambda: nn.LSTM(4, 8, num_layers=2))
    assert all(
        weight is getattr(model, name)
        for weight, name in zip(model._flat_weights, model._flat_weights_names, strict=True)
    )


def test_channels_last_keeps_what_else_a_tensor_is() -> None:
    class Convolutions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(4, 8, 3), nn.Conv2d(4, 8, 3)
            self.second.weight = self.first.weight
            self.first.bias.requires_grad = False

    model = built(Convolutions, channels_last=True)
    weight = model.first.weight
    assert isinstance(weight, nn.Parameter)
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert weight is model.second.weight
    assert (weight.requires_grad, model.first.bias.requires_grad) == (True, False)


def test_a_batch_that_numpy_or_values_make_is_made_for_real() -> None:
    def make_batch(size: int) -> dict[str, object]:
        length = int(torch.tensor([3, 5]).max().item())
        return {"tokens": torch.zeros(size, length, dtype=torch.int64), "length": length}

    job = workload(StochasticDepth, make_batch)
    batch = build_batch(job, FakeTensorMode(allow_non_fake_inputs=True))
    assert isinstance(batch["tokens"], FakeTensor)
    assert (batch["tokens"].shape, batch["length"]) == ((2, 5), 5)


def test_a_sparse_batch() -> None:
    workload = Workload(
        build_model=lambda: nn.Linear(2, 2),
        make_batch=lambda size: (torch.randn(size, 2), torch.eye(2).to_sparse()),
        compute_loss=lambda model, batch: None,  # type: ignore[arg-type,return-value]
        make_optimizer=lambda model: None,  # type: ignore[arg-type,return-value]
    )
    with pytest.raises(WorkloadError, match=r"holds a sparse_coo tensor of shape \(2, 2\)"):
        build_batch(workload, FakeTensorMode(allow_non_fake_inputs=True))


def test_sparse_gradients() -> None:
    workload = Workload(
        build_model=lambda: nn.Sequential(nn.EmbeddingBag(10, 2, sparse=True)),
        make_batch=lambda size: None,
        compute_loss=lambda model, batch: None,  # type: ignore[arg-type,return-value]
        make_optimizer=lambda model: None,  # type: ignore[arg-type,return-value]
    )
    with pytest.raises(WorkloadError, match="0 is an EmbeddingBag with sparse=True"):
        build_model(workload)
