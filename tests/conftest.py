"""Hygiene for every test, and golden files."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: `text` is what the file `tests/golden/name` holds."""

    def compare(name: str, text: str, *, folder: Path = GOLDEN) -> None:
        path = folder / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        stored = path.read_text(encoding="utf-8") if path.exists() else ""
        assert text == stored, f"{name} differs: pytest --update-golden writes it anew, then read the diff"

    return compare


@pytest.fixture(autouse=True)
def _no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that leaves a thread running or the environment changed fails itself, not its neighbour."""
    environment = _environment()
    threads = set(threading.enumerate())
    yield
    assert _environment() == environment, "the test leaves environment variables changed"
    left = [thread for thread in set(threading.enumerate()) - threads if not thread.daemon]
    assert not left, f"the test leaves threads running: {left}"


def _environment() -> dict[str, str]:
    """All but what pytest (the running test's name) and torch (on the first import of inductor) write themselves."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR")
    }
