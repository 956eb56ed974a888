"""What can be called without asking the user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from advisor.workload.constructors import default_construction, is_a, required_parameters, signature, template


@dataclass
class Config:
    width: int = 8
    n_layer: int = 4


@dataclass
class NeedyArgs:
    vocab_size: int
    width: int = 8


class Annotated:
    def __init__(self, config: Config, scale: float = 1.0) -> None:
        self.config = config


class Bare:
    def __init__(self, config):  # type: ignore[no-untyped-def]
        self.config = config


class Needy:
    def __init__(self, args: NeedyArgs) -> None:
        self.args = args


class Plain:
    def __init__(self, width: int, depth: int = 2, *rest: int, **options: int) -> None: ...


class Free:
    def __init__(self, width: int = 1, **options: int) -> None: ...


NAMES: dict[str, Any] = {"Config": Config, "Annotated": Annotated}


@pytest.mark.parametrize(
    ("factory", "label"),
    [(Free, "Free()"), (Annotated, "Annotated(Config())"), (Bare, "Bare(Config())"), (Needy, None), (Plain, None)],
)
def test_default_construction(factory: Any, label: str | None) -> None:
    made = default_construction(factory, NAMES)
    assert (made.label if made else None) == label


def test_a_default_configuration_gives_smaller_variants() -> None:
    made = default_construction(Annotated, NAMES)
    assert made is not None
    assert made.call().config == Config()
    assert made.variants["half-depth"]().config.n_layer == 2


def test_two_configurations_are_not_chosen_between() -> None:
    assert default_construction(Bare, NAMES | {"NeedyArgs": NeedyArgs}) is None


def test_an_unrelated_annotation_is_no_configuration() -> None:
    def build(width: int) -> None: ...

    assert default_construction(build, NAMES) is None


def test_templates() -> None:
    assert template(Plain, {}) == "Plain(width=...)"
    assert template(Needy, {}) == "Needy(NeedyArgs(vocab_size=...))"
    assert signature(Plain) == "Plain(width, depth=2, *rest, **options)"
    assert [parameter.name for parameter in required_parameters(Plain)] == ["width"]


def test_is_a_goes_by_name() -> None:
    class LightningModule: ...

    class Lit(LightningModule): ...

    assert is_a(Lit, "LightningModule")
    assert not is_a(Free, "LightningModule")
