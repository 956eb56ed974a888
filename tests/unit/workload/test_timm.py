"""Image models of timm, against a stand-in that has its functions."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import UsageError, WorkloadError
from advisor.workload.timm import timm_source


class Classifier(nn.Module):
    def __init__(self, *, auxiliary: bool) -> None:
        super().__init__()
        self.head = nn.Linear(3, 7)
        self.auxiliary = auxiliary

    def forward(self, x: torch.Tensor) -> Any:
        out = self.head(x.mean(dim=(2, 3)))
        return (out, out) if self.auxiliary else out


@pytest.fixture(autouse=True)
def _timm(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = {
        "resnet18": SimpleNamespace(input_size=(3, 32, 32), num_classes=7),
        "inception_v3": SimpleNamespace(input_size=(3, 16, 16), num_classes=7),
        "features_only": SimpleNamespace(input_size=(3, 32, 32), num_classes=0),
        "unstated": None,
    }
    stand_in = SimpleNamespace(
        __version__="1.0",
        is_model=configs.__contains__,
        list_models=lambda: list(configs),
        get_pretrained_cfg=lambda name: configs[name.partition(".")[0]],
        create_model=lambda name, pretrained: Classifier(auxiliary=name == "inception_v3"),
    )
    monkeypatch.setitem(sys.modules, "timm", stand_in)


@pytest.mark.parametrize(("name", "size"), [("resnet18.a1_in1k", 32), ("inception_v3", 16)])
def test_a_classifier(name: str, size: int) -> None:
    source = timm_source(name)
    assert source.batch is not None
    assert source.loss is not None
    batch = source.batch.function(2)
    assert [tuple(t.shape) for t in batch] == [(2, 3, size, size), (2,)]
    assert source.loss.function(source.model.function(), batch).dim() == 0
    assert source.loss.guess is not None


def test_another_size() -> None:
    source = timm_source("resnet18", inputs=("f32:3x8x8",))
    assert source.batch is not None
    assert source.batch.function(1)[0].shape == (1, 3, 8, 8)
    assert source.batch.guess is None


def test_no_classes_no_loss() -> None:
    source = timm_source("features_only")
    assert source.loss is None
    assert source.batch is not None
    assert len(source.batch.function(1)) == 1


def test_names_that_are_wrong() -> None:
    with pytest.raises(WorkloadError) as caught:
        timm_source("resnet81")
    assert caught.value.message == "timm 1.0 has no model 'resnet81'"
    assert caught.value.hint == "did you mean timm:resnet18?"
    with pytest.raises(WorkloadError, match="timm states no input size for unstated"):
        timm_source("unstated")
    with pytest.raises(UsageError):
        timm_source("unstated", inputs=("f32:HxW",))


def test_without_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(WorkloadError) as caught:
        timm_source("resnet18")
    assert caught.value.hint == "pip install timm"
