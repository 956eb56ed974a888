"""TARGET and flags to a workload: what wins, what is guessed, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from advisor.errors import AdvisorError, UsageError, WorkloadError
from advisor.workload.loader import load, refined
from advisor.workload.spec import Workload, WorkloadDescription
from advisor.workload.target import TargetSpec

Spec = Callable[..., TargetSpec]


def step(workload: Workload, *, size: int = 2) -> torch.Tensor:
    """Forward, backward and the optimizer's step, for real."""
    model = workload.build_model()
    loss = workload.compute_loss(model, workload.make_batch(size))
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer = workload.make_optimizer(model)
    optimizer.step()
    return loss


def guessed(description: WorkloadDescription) -> list[str]:
    return [guess.what for guess in description.guesses]


def test_hooks(spec: Spec) -> None:
    workload, description = load(spec("mlp.py"))
    assert step(workload).dim() == 0
    assert description.model == "build_model()"
    assert guessed(description) == []
    assert description.settings == {"global_batch": "256", "samples": "1M", "lr": "0.001"}
    assert description.variants == ("half width", "two layers")
    assert (description.has_batches, description.has_evaluate) == (True, True)
    assert workload.batches is not None
    assert workload.evaluate is not None
    assert workload.evaluate(workload.build_model()) > 0
    assert description.versions["torch"] == torch.__version__


def test_a_gpt_that_says_nothing(spec: Spec) -> None:
    workload, description = load(spec("gpt.py"))
    assert step(workload).dim() == 0
    assert workload.name == "GPT"
    assert description.model == "GPT(GPTConfig())"
    assert description.batch == "idx, targets: int64 (B, 64) in [0, 512)"
    assert description.variants == ("half-depth", "half-width", "half-sequence")
    assert guessed(description) == ["model", "batch"]
    description = refined(description, workload)
    assert description.loss == "the scalar in what forward returns"
    assert guessed(description) == ["model", "batch", "loss", "optimizer"]
    assert guessed(refined(description, workload)) == ["model", "batch", "loss", "optimizer"]


def test_a_loss_by_name_in_forward_is_no_guess(spec: Spec) -> None:
    workload, description = load(spec("moe.py"))
    step(workload)
    assert refined(description, workload).loss == 'out["loss"]'
    assert "loss" not in guessed(refined(description, workload))


@pytest.mark.parametrize(
    ("name", "flags", "labels"),
    [
        (
            "cnn.py",
            {"inputs": ("f32:3x16x16",), "targets": ("i64[0,10)",), "loss": "ce", "optimizer": "sgd"},
            {"loss": "F.cross_entropy(out, target)", "optimizer": "torch.optim.SGD, torch's defaults"},
        ),
        ("cnn.py", {"inputs": ("f32:3x16x16",)}, {"loss": "proxy: mean of the float outputs"}),
        ("unet.py:small_unet", {"inputs": ("f32:1x16x16",), "targets": ("i64[0,2):16x16",), "loss": "ce"}, {}),
        (
            "lstm.py",
            {
                "model": "RNNModel(50, 8, 8, 2)",
                "batch": "torch.randint(0, 50, (5, B)), model.init_hidden(B)",
                "targets": ("torch.randint(0, 50, (5 * B,))",),
                "loss": "F.nll_loss(out[0], target)",
            },
            {"model": "RNNModel(50, 8, 8, 2)", "loss": "F.nll_loss(out[0], target)"},
        ),
        (
            "diffusion.py",
            {"inputs": ("f32:3x8x8",), "call": "model.training_loss(*batch)"},
            {"model": "GaussianDiffusion()", "loss": "out"},
        ),
        (
            "lit.py:LitClassifier",
            {"inputs": ("f32:1x28x28",), "targets": ("i64[0,10)",)},
            {"loss": "training_step(batch, 0)", "optimizer": "configure_optimizers()"},
        ),
        (
            "lit.py:LitWarmUp",  # asks the Trainer
            {"batch": "torch.rand(B, 784), torch.arange(B)"},
            {"loss": "training_step(batch, 0)", "optimizer": "configure_optimizers()"},
        ),
        (
            "lit.py:LitWithData",  # asks for more than there is
            {"batch": "torch.rand(B, 784), torch.arange(B)"},
            {"optimizer": "torch.optim.AdamW, torch's defaults"},
        ),
        ("gan.py", {"model": "Generator", "inputs": ("f32:100",), "loss": "-Discriminator(4)(out).mean()"}, {}),
        ("mlp.py", {"loss": "F.cross_entropy(out, target)"}, {"loss": "F.cross_entropy(out, target)"}),
        ("mlp.py", {"inputs": ("f32:64",), "targets": ("i64[0,10)",)}, {"loss": "compute_loss(model, batch)"}),
        ("needs_args.py", {"model": "Tiny.from_name('small')", "inputs": ("i64[0,100):4",), "loss": "out.mean()"}, {}),
    ],
)
def test_flags(spec: Spec, name: str, flags: dict[str, Any], labels: dict[str, str]) -> None:
    workload, description = load(spec(name, **flags))
    assert step(workload).dim() == 0
    description = refined(description, workload)
    assert {key: getattr(description, key) for key in labels} == labels


def test_a_module_of_a_package(
    write: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write("nets_of_test/__init__.py", "")
    write("nets_of_test/small.py", "from torch import nn\nNet = nn.Linear\n")
    monkeypatch.chdir(tmp_path)
    workload, description = load(TargetSpec(target="nets_of_test.small:Net(3, 4)", inputs=("f32:3",)))
    assert step(workload).dim() == 0
    assert description.model == "Net(3, 4)"


def test_the_hash_covers_file_and_flags(spec: Spec) -> None:
    hashes = {
        load(spec("mlp.py", **flags))[1].source_hash for flags in ({}, {"optimizer": "sgd"}, {"optimizer": "adam"})
    }
    assert len(hashes) == 3
    assert load(spec("mlp.py"))[1].source_hash in hashes


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("broken_syntax.py", {}, "broken_syntax.py:4"),
        ("broken_import.py", {}, "broken_import.py:3 (import no_such_package_of_ours)"),
        ("calls_exit.py", {}, "calls_exit.py:9 (sys.exit(3))"),
        ("installs.py", {}, "installs.py:7"),
        ("gan.py", {}, "gan.py defines 2 models"),
        ("needs_args.py", {}, "needs_args.py needs arguments only you know: config"),
        ("cnn.py", {}, "nothing says what SmallResNet.forward(x) is fed"),
        ("no_params.py", {}, "Net has no parameters"),
        ("frozen.py", {}, "all 2 parameters of Net are frozen"),
        ("lit.py:LitClassifier", {}, "LitClassifier.training_step needs a batch"),
        ("gpt.py", {"model": "GPT(GPTConfg())"}, "--model `GPT(GPTConfg())`: NameError"),
        ("gpt.py", {"model": "GPT(None)"}, "gpt.py:"),
        ("gpt.py", {"model": "GPT("}, "--model 'GPT(' is not a Python expression"),
        ("gpt.py", {"batch": "(B"}, "--batch '(B' is not a Python expression"),
    ],
)
def test_what_can_not_be_loaded(spec: Spec, name: str, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        load(spec(name, **flags))
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("target", "flags", "message"),
    [
        ("gpt.py:GPT", {"model": "GPT"}, "both name the model"),
        ("gpt.py", {"batch": "B", "inputs": ("f32:3",)}, "--batch and --input both say"),
        ("gpt.py", {"inputs": ("i64:3",)}, "integers need a range"),
        ("gpt.py", {"loss": "mea"}, "--loss mea: no such loss"),
        ("gpt.py", {"optimizer": "adamm"}, "--optimizer adamm: no such optimizer"),
    ],
)
def test_flags_that_make_no_sense(spec: Spec, target: str, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(spec(target, **flags))
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("lit.py:LitGAN", {"batch": "torch.rand(B, 784), torch.arange(B)"}, "LitGAN optimises manually"),
        ("cnn.py", {"inputs": ("f32:3x8x8", "f32:1")}, "SmallResNet.forward(x) can't take the batch (Tensor, Tensor)"),
        ("cnn.py", {"inputs": ("f32:3x8x8",), "targets": ("i64[0,10)",)}, "--target without --loss"),
    ],
)
def test_what_only_a_step_shows(spec: Spec, name: str, flags: dict[str, Any], message: str) -> None:
    workload, _ = load(spec(name, **flags))
    with pytest.raises(AdvisorError) as caught:
        step(workload)
    assert message in caught.value.message
