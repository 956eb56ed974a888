"""Plug-ins are found by name, and a wrong one is loud."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from advisor.discovery import discover

GOOD = "class _Good:\n    name = {name!r}\n    def apply(self): ...\nPLUGIN = _Good()\n"


class Plugin(Protocol):
    name: str

    def apply(self) -> None: ...


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "plugins_under_test"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.startswith(folder.name)]:
        del sys.modules[name]


def test_in_name_order_without_base_and_private(package: Path) -> None:
    for name in ("zebra", "ant"):
        (package / f"{name}.py").write_text(GOOD.format(name=name))
    for name in ("base", "_private"):
        (package / f"{name}.py").write_text("raise RuntimeError('must not be imported')")
    assert list(discover(package.name, "PLUGIN", Plugin)) == ["ant", "zebra"]


def test_an_import_error_is_not_swallowed(package: Path) -> None:
    (package / "broken.py").write_text("import no_such_module_anywhere")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
        discover(package.name, "PLUGIN", Plugin)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "defines no PLUGIN"),
        ("class P:\n    name = 'wrong'\nPLUGIN = P()", "is no Plugin: it lacks apply"),
        (GOOD.format(name="other"), "'other', not the file's name 'wrong'"),
    ],
)
def test_a_wrong_plugin_is_loud(package: Path, source: str, message: str) -> None:
    (package / "wrong.py").write_text(source)
    with pytest.raises(TypeError, match=message):
        discover(package.name, "PLUGIN", Plugin)
