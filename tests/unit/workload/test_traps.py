"""Where a first guess goes wrong on public files: each trap ends in a question or a warning, never in another model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from advisor.errors import AdvisorError
from advisor.options.base import Recipe
from advisor.session.local import trace_recipe
from advisor.trace.records import StepTrace, TraceTarget
from advisor.workload.loader import load, refined
from advisor.workload.spec import WorkloadDescription
from advisor.workload.target import TargetSpec

Write = Callable[[str, str], Path]

GPU = TraceTarget(device_type="cuda", compute_capability=(8, 0))
HEAD = "import torch\nfrom torch import nn\n"


def step(spec: TargetSpec) -> tuple[WorkloadDescription, StepTrace]:
    workload, description = load(spec)
    trace = trace_recipe(workload, Recipe(micro_batch_size=2), GPU)
    return refined(description, workload), trace


def refused(path: Path, **flags: object) -> tuple[str, str]:
    with pytest.raises(AdvisorError) as caught:
        step(TargetSpec(target=str(path), **flags))  # type: ignore[arg-type]
    return caught.value.message, caught.value.hint or ""


def test_the_last_class_is_not_taken(write: Write) -> None:
    source = HEAD + "".join(
        f"class {name}(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.layer = nn.Linear(4, 4)\n"
        "    def forward(self, x):\n        return self.layer(x)\n"
        for name in ("UNet", "Probe")
    )
    message, hint = refused(write("last_class.py", source), inputs=("f32:4",))
    assert "defines 2 models" in message
    assert "--model 'UNet()'" in hint
    assert "--model 'Probe()'" in hint


def test_an_empty_model(write: Write) -> None:
    """dlrm's class takes no argument, and builds nothing without its sizes."""
    source = HEAD + (
        "class DLRM(nn.Module):\n"
        "    def __init__(self, sizes=None):\n"
        "        super().__init__()\n"
        "        if sizes is not None:\n            self.layer = nn.Linear(*sizes)\n"
        "    def forward(self, x):\n        return self.layer(x)\n"
    )
    path = write("empty_default.py", source)
    message, hint = refused(path, inputs=("f32:4",))
    assert message == "DLRM has no parameters: there is nothing to train"
    assert "--model" in hint
    _, description = load(TargetSpec(target=str(path), model="DLRM((4, 2))", inputs=("f32:4",)))
    assert description.model == "DLRM((4, 2))"


def test_floats_where_the_model_wants_token_ids(write: Write) -> None:
    source = HEAD + (
        "class Tagger(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.words, self.out = nn.Embedding(100, 8), nn.Linear(8, 5)\n"
        "    def forward(self, tokens):\n"
        "        return self.out(self.words(tokens))\n"
    )
    path = write("tagger.py", source)
    message, _ = refused(path, inputs=("f32:16",))
    assert "tagger.py:8 (return self.out(self.words(tokens)))" in message
    assert "torch.float32" in message
    _, hint = refused(path)
    assert "--input 'i64[0,100):LENGTH'" in hint  # the vocabulary is certain, the length is not


def test_no_size_is_found_by_trying(write: Write) -> None:
    """resnet20 takes 224 x 224 as well as the 32 x 32 it is trained on."""
    source = HEAD + (
        "class Small(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.conv, self.out = nn.Conv2d(3, 8, 3), nn.Linear(8, 10)\n"
        "    def forward(self, x):\n"
        "        return self.out(self.conv(x).mean((2, 3)))\n"
    )
    message, hint = refused(write("small_images.py", source))
    assert "a size is never guessed" in message
    assert "--input 'f32:3xHxW' --target 'i64[0,10)' --loss ce" in hint


def test_a_default_of_billions_is_doubted(write: Write) -> None:
    source = HEAD + (
        "from dataclasses import dataclass\n"
        "@dataclass\nclass ModelArgs:\n    width: int = 32768\n"
        "class Llama(nn.Module):\n"
        "    def __init__(self, args: ModelArgs):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(args.width, args.width)\n"
        "    def forward(self, x):\n        return self.layer(x)\n"
    )
    description, _ = step(TargetSpec(target=str(write("big_default.py", source)), inputs=("f32:32768",)))
    (guess,) = [guess for guess in description.guesses if guess.what == "model"]
    assert "its defaults make 1.1 B parameters: is this what is trained?" in guess.why


def test_a_constructor_that_only_looks_free_of_arguments(write: Write) -> None:
    source = HEAD + (
        "class Inner(nn.Linear): pass\n"
        "class Lit(nn.Module):\n"
        "    def __init__(self, **kwargs):\n"
        "        super().__init__()\n"
        "        self.model = Inner(**kwargs)\n"
        "    def forward(self, x):\n        return self.model(x)\n"
    )
    message, hint = refused(write("passes_on.py", source), inputs=("f32:4",))
    assert "passes_on.py:7 (self.model = Inner(**kwargs))" in message
    assert "--model 'Lit(...)'" in hint


def test_a_factory_behind_another_one(write: Write) -> None:
    """torchvision's: `resnet18()` returns what `_resnet(...)` returns."""
    source = HEAD + (
        "class ResNet(nn.Module):\n"
        "    def __init__(self, layers):\n"
        "        super().__init__()\n"
        "        self.body = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))\n"
        "    def forward(self, x):\n        return self.body(x)\n"
        "def _resnet(layers, **options):\n    model = ResNet(layers)\n    return model\n"
        "def resnet18(*, weights=None, **options):\n    return _resnet(18, **options)\n"
        "def resnet34(*, weights=None, **options) -> ResNet:\n    return _resnet(34, **options)\n"
    )
    path = write("resnets.py", source)
    message, hint = refused(path, inputs=("f32:4",))
    assert message.endswith("resnets.py has 2 functions that build a model: resnet18(), resnet34()")
    assert "--model 'resnet34()'" in hint
    workload, description = load(TargetSpec(target=f"{path}:resnet34", inputs=("f32:4",)))
    assert description.model == "resnet34()"
    assert len(list(workload.build_model().parameters())) == 68


def test_a_script_that_imports_its_model(write: Write) -> None:
    write(
        "its_nets.py",
        HEAD + "class Net(nn.Linear):\n    def __init__(self, width):\n        super().__init__(width, 1)\n",
    )
    message, hint = refused(write("its_train.py", "from its_nets import Net\n"), inputs=("f32:4",))
    assert "its_train.py defines no nn.Module and no function that builds one; it imports some" in message
    assert "--model 'Net(width=...)'" in hint


def test_both_networks_of_a_pair() -> None:
    from user_files import MODELS

    spec = TargetSpec(
        target=str(MODELS / "gan.py"),
        model="nn.ModuleList([Generator(), Discriminator(16)])",
        inputs=("f32:100",),
        loss="model[1](model[0](*batch)).mean()",
    )
    _, trace = step(spec)
    assert {record.name[0] for record in trace.parameters} == {"0", "1"}


def test_an_unreduced_loss(write: Write) -> None:
    source = HEAD + (
        "class LM(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.layer = nn.Linear(4, 4)\n"
        "    def forward(self, x):\n        return [self.layer(x).pow(2).mean(1)]\n"
    )
    message, hint = refused(write("unreduced.py", source), inputs=("f32:4",), loss="out[0]")
    assert message.startswith("the loss has shape (2,), not a scalar")
    assert "mean()" in hint


def test_what_stands_for_the_model_must_be_one(write: Write) -> None:
    path = write("a_class.py", HEAD + "def pick(name):\n    return nn.Linear\n")
    message, _ = refused(path, model="pick('x')", inputs=("f32:4",))
    assert message == "building the model gave the class Linear, not an nn.Module"
