"""User files are imported into this process here: each test gives back what that changes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from user_files import MODELS

from advisor.workload.target import TargetSpec


@pytest.fixture(autouse=True)
def _restore_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if "site-packages" not in file and "/advisor/" not in file and not name.startswith("torch"):
            del sys.modules[name]


@pytest.fixture
def spec() -> Callable[..., TargetSpec]:
    """`spec("gpt.py", loss="ce")`: a file of tests/models and flags."""

    def build(name: str, **flags: object) -> TargetSpec:
        return TargetSpec(target=str(MODELS / name), **flags)  # type: ignore[arg-type]

    return build


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """`write("package/model.py", source)`: a file in a folder of its own."""

    def write_file(name: str, source: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
        return path

    return write_file
