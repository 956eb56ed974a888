"""Which model a file is about: one candidate is taken, several are listed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from user_files import MODELS

from advisor.errors import WorkloadError
from advisor.workload.candidates import UserFile, found_model, named_model, open_file, root_classes
from advisor.workload.candidates import zero_argument_factories as factories

Write = Callable[[str, str], Path]


def opened(name: str) -> UserFile:
    return open_file(MODELS / name, target=name)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("gpt.py", "GPT(GPTConfig())"),
        ("moe.py", "MoETransformer(MoEConfig())"),
        ("cnn.py", "SmallResNet()"),
        ("diffusion.py", "GaussianDiffusion()"),
        ("unet.py", "small_unet()"),
    ],
)
def test_the_only_candidate(name: str, label: str) -> None:
    part = found_model(opened(name))
    assert part.label == label
    assert part.guess is not None
    assert (part.guess.what, part.guess.chosen, part.guess.flag) == ("model", label, "--model")
    assert type(part.function()).__name__ in {"GPT", "MoETransformer", "SmallResNet", "GaussianDiffusion", "UNet"}


def test_loss_like_classes_are_no_models_and_two_models_are_listed() -> None:
    file = opened("gan.py")
    assert [root.__name__ for root in root_classes(file)] == ["Generator", "Discriminator"]
    with pytest.raises(WorkloadError) as caught:
        found_model(file)
    assert caught.value.message.endswith(
        "gan.py defines 2 models, and nothing says which one is trained: Generator, Discriminator"
    )
    lines = (caught.value.hint or "").splitlines()
    assert lines[:5] == [
        "choose one:",
        "  advisor assess gan.py --model 'Generator()'",
        "  advisor assess gan.py --model 'Discriminator(width=...)'",
        "or, where they train together, a step of both with one loss:",
        "  advisor assess gan.py --model 'nn.ModuleList([Generator(), Discriminator(width=...)])'"
        " --loss 'model[1](model[0](*batch)).mean()'",
    ]


def test_a_lightning_module_comes_before_its_network(write: Write) -> None:
    path = write(
        "lit_model.py",
        "from torch import nn\n"
        "class LightningModule(nn.Module): ...\n"
        "class Net(nn.Linear): ...\n"
        "class Lit(LightningModule): ...\n",
    )
    assert [root.__name__ for root in root_classes(open_file(path, target="x"))] == ["Lit"]


def test_an_ingredient_of_another_model_is_no_candidate(write: Write) -> None:
    path = write(
        "resnet.py",
        "from torch import nn\n"
        "class Block(nn.Linear): ...\n"
        "class ResNet(nn.Module):\n"
        "    def __init__(self, block, depth): super().__init__()\n"
        "def resnet20(): return ResNet(Block, [3, 3, 3])\n"
        "def resnet32():\n    net = ResNet(Block, [5, 5, 5])\n    return net\n"
        "def helper(): return 3\n"
        "def _private(): return ResNet(Block, [1])\n",
    )
    file = open_file(path, target="resnet.py")
    assert [root.__name__ for root in root_classes(file)] == ["ResNet"]
    assert [factory.__name__ for factory in factories(file)] == ["resnet20", "resnet32"]
    with pytest.raises(WorkloadError, match=r"has 2 functions that build a model: resnet20\(\), resnet32\(\)"):
        found_model(file)


def test_required_arguments_are_asked_for_with_the_calls_of_the_repository() -> None:
    with pytest.raises(WorkloadError) as caught:
        found_model(opened("lstm.py"))
    assert "needs arguments only you know: ntoken, ninp, nhid, nlayers" in caught.value.message
    assert "--model 'RNNModel(ntoken=..., ninp=..., nhid=..., nlayers=...)'" in (caught.value.hint or "")
    assert "lstm.py:28: RNNModel(1000, 64, 64, 2)" in (caught.value.hint or "")


def test_required_fields_of_a_configuration_and_class_methods() -> None:
    with pytest.raises(WorkloadError) as caught:
        found_model(opened("needs_args.py"))
    assert "--model 'Tiny(TinyConfig(vocab_size=...))'" in (caught.value.hint or "")
    assert "or: --model 'Tiny.from_name(name)'" in (caught.value.hint or "")


def test_a_default_configuration_from_a_method_is_offered(write: Write) -> None:
    path = write(
        "mini.py",
        "from types import SimpleNamespace\n"
        "from torch import nn\n"
        "class GPT(nn.Module):\n"
        "    @staticmethod\n"
        "    def get_default_config(): return SimpleNamespace(n_layer=None, dropout=0.1)\n"
        "    def __init__(self, config): super().__init__()\n",
    )
    with pytest.raises(WorkloadError) as caught:
        found_model(open_file(path, target="mini.py"))
    hint = caught.value.hint or ""
    assert "\"GPT((lambda c: [setattr(c, 'FIELD', VALUE), c][-1])(GPT.get_default_config()))\"" in hint
    assert "with the fields n_layer=None, dropout=0.1" in hint


def test_nothing_to_find(write: Write) -> None:
    with pytest.raises(WorkloadError, match=r"defines no nn\.Module and no function that builds one"):
        found_model(open_file(write("empty.py", "x = 1\n"), target="empty.py"))


@pytest.mark.parametrize(
    ("text", "label", "type_name"),
    [
        ("Generator", "Generator()", "Generator"),
        ("Discriminator(8)", "Discriminator(8)", "Discriminator"),
        ("nn.Sequential(Discriminator(4))", "nn.Sequential(Discriminator(4))", "Sequential"),
        (f"{MODELS / 'unet.py'}:small_unet", "small_unet()", "UNet"),
        ("unet.py:UNet(1, 2)", "UNet(1, 2)", "UNet"),
    ],
)
def test_named_models(text: str, label: str, type_name: str) -> None:
    part = named_model(text, opened("gan.py"))
    assert part.label == label
    assert part.guess is None
    assert type(part.function()).__name__ == type_name


def test_a_model_built_at_import_is_copied(write: Write) -> None:
    path = write("built.py", "from torch import nn\nnet = nn.Linear(2, 2)\n")
    file = open_file(path, target="built.py")
    part = named_model("net", file)
    assert part.function() is not file.names["net"]
    assert part.function().weight.equal(file.names["net"].weight)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Generatr", "--model Generatr: name 'Generatr' is not defined in"),
        ("Discriminator", "needs arguments only you know: width"),
        ("__doc__", "--model __doc__ is a str, not a model"),
        ("other.py:make", "--model other.py: no such file here or beside"),
        ("no/config.json", "no such file: no/config.json"),
    ],
)
def test_names_that_are_wrong(text: str, message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        named_model(text, opened("gan.py"))
    assert message in caught.value.message


def test_a_guess_that_fails_says_how_to_override_it(write: Write) -> None:
    path = write(
        "none.py",
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, width=None):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(width, 2)\n",
    )
    with pytest.raises(TypeError) as caught:
        found_model(open_file(path, target="none.py")).function()
    assert caught.value.__notes__ == [
        "if this is not how the model is built: advisor assess none.py --model 'Net(...)'"
    ]
