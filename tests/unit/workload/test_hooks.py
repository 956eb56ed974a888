"""The names a user's file may define."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.errors import WorkloadError
from advisor.workload.candidates import UserFile
from advisor.workload.hooks import other_hook, settings, step_hook, variants


def file(**names: Any) -> UserFile:
    return UserFile(target="model.py", path=Path("model.py"), module_name="model", names=names)


def fail() -> None:
    raise RuntimeError("not now")


def test_hooks_that_fit() -> None:
    def compute_loss(model: Any, batch: Any, weight: float = 1.0) -> None: ...

    assert step_hook(file(compute_loss=compute_loss), "compute_loss") is compute_loss
    assert step_hook(file(), "make_batch") is None


def test_build_model_for_a_configuration_is_not_ours() -> None:
    assert step_hook(file(build_model=lambda config: None), "build_model") is None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("make_batch", lambda: None, "advisor calls make_batch(batch_size)"),
        ("compute_loss", lambda output: None, "advisor calls compute_loss(model, batch)"),
        ("make_optimizer", "adamw", "make_optimizer in model.py is a str, not a function"),
    ],
)
def test_step_hooks_that_do_not_fit(name: str, value: Any, message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        step_hook(file(**{name: value}), name)
    assert message in caught.value.message


def test_other_names_may_be_the_users_own() -> None:
    assert other_hook(file(evaluate=lambda model, loader: 0), "evaluate", "model") is None
    assert other_hook(file(batches=[1, 2]), "batches", "batch_size") is None


def test_variants() -> None:
    made = {"small": lambda: None}
    assert variants(file(variants=lambda: made)) == made
    assert variants(file()) == {}
    with pytest.raises(WorkloadError, match=r"variants\(\) in model.py returns no dict of functions"):
        variants(file(variants=lambda: ["small"]))
    with pytest.raises(WorkloadError, match=r"variants\(\) in model.py failed at .*test_hooks.py:\d+ .*not now"):
        variants(file(variants=fail))


def test_settings_are_text() -> None:
    assert settings(file(ADVISOR={"samples": "40M", "lr": 3e-4})) == {"samples": "40M", "lr": "0.0003"}
    with pytest.raises(WorkloadError, match=r"ADVISOR in model.py is a list, not a dict"):
        settings(file(ADVISOR=[]))
