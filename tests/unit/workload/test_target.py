"""What a user can type: TARGET, short forms, and the command line given back."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.errors import UsageError, WorkloadError
from advisor.workload.target import (
    Target,
    TargetKind,
    TargetSpec,
    TensorForm,
    is_tensor_form,
    parse_target,
    parse_tensor_form,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("model.py", "bert/config.json", "README.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    for name, source in (
        ("a.py", "class Net(nn.Module):\n"),
        ("b/c.py", "class Lit(LightningModule):\n"),
        ("d.py", ""),
    ):
        path = tmp_path / "nets" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("model.py", Target(kind=TargetKind.FILE, location="model.py")),
        ("model.py:GPT", Target(kind=TargetKind.FILE, location="model.py", name="GPT")),
        ("model.py:GPT(x=1)", Target(kind=TargetKind.FILE, location="model.py", name="GPT(x=1)")),
        ("package.models:GPT", Target(kind=TargetKind.MODULE, location="package.models", name="GPT")),
        ("bert", Target(kind=TargetKind.CONFIG, location="bert/config.json")),
        ("bert/config.json", Target(kind=TargetKind.CONFIG, location="bert/config.json")),
        ("timm:resnet50.a1_in1k", Target(kind=TargetKind.TIMM, location="resnet50.a1_in1k")),
    ],
)
def test_targets(folder: Path, text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("modle.py", "no such file: modle.py", "did you mean model.py?"),
        ("model", "no such file: model", "did you mean model.py?"),
        ("README.md", "README.md is not a Python file", "TARGET is"),
        ("nets", "nets is a folder without a config.json, and 2 of its files define models", "assess nets/a.py"),
        ("empty", "empty is a folder without a config.json and without a file that defines an nn.Module", ""),
        ("config.json", "no such file: config.json", "TARGET is"),
    ],
)
def test_targets_that_are_none(folder: Path, text: str, message: str, hint: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        parse_target(text)
    assert caught.value.message == message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("f32:3x224x224", TensorForm(dtype="float32", shape=(3, 224, 224))),
        ("i64[0,50257):1024", TensorForm(dtype="int64", shape=(1024,), low=0, high=50257)),
        ("i64[0,1000)", TensorForm(dtype="int64", shape=(), low=0, high=1000)),
        ("float32[-1, 1):8", TensorForm(dtype="float32", shape=(8,), low=-1, high=1)),
        ("bool:4", TensorForm(dtype="bool", shape=(4,))),
        ("bf16", TensorForm(dtype="bfloat16", shape=())),
    ],
)
def test_short_forms(text: str, form: TensorForm) -> None:
    assert is_tensor_form(text)
    assert parse_tensor_form(text, flag="--input") == form


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("i64:1024", "integers need a range"),
        ("i64[0,0):8", "[0, 0) is empty"),
        ("i64[0,10]:8", "is not DTYPE[LOW,HIGH):SHAPE"),
        ("f32:3x0", "a dimension of size 0"),
        ("f32:3xHxW", "is not DTYPE[LOW,HIGH):SHAPE"),
        ("f23:3", "no dtype 'f23'"),
        ("i64[0,many):8", "'many' is not a number"),
    ],
)
def test_short_forms_that_are_wrong(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_tensor_form(text, flag="--input")
    assert message in caught.value.message
    assert caught.value.message.startswith(f"--input {text!r}")


def test_an_expression_is_no_short_form() -> None:
    assert not is_tensor_form("torch.arange(B)")
    assert not is_tensor_form("batch[0]")


def test_command_gives_back_what_was_typed() -> None:
    spec = TargetSpec(target="my model.py", model="UNet(3, 2)", inputs=("f32:3",))
    assert spec.command("--loss ce") == "advisor assess 'my model.py' --model 'UNet(3, 2)' --input f32:3 --loss ce"
