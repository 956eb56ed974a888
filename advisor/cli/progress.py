"""Progress on standard error: a line that moves on a terminal, plain lines elsewhere for what takes over a second."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

_WORTH_SAYING_S = 1.0

Tell = Callable[[str, float | None], None]


@contextlib.contextmanager
def progress(*, quiet: bool) -> Iterator[Tell]:
    """A function to call with what is being done and, where it is known, the share that is done."""
    if quiet:
        yield lambda what, share: None
    elif sys.stderr.isatty():
        with _moving() as tell:
            yield tell
    else:
        with _lines() as tell:
            yield tell


@contextlib.contextmanager
def _moving() -> Iterator[Tell]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task("", total=None)

        def tell(what: str, share: float | None) -> None:
            display.update(task, description=what, total=None if share is None else 1.0, completed=share or 0.0)

        yield tell


@contextlib.contextmanager
def _lines() -> Iterator[Tell]:
    """One line for each thing that is still being done after a second."""
    pending: threading.Timer | None = None
    said: set[str] = set()

    def say(what: str) -> None:
        said.add(what)
        print(f"advisor: {what}", file=sys.stderr, flush=True)  # noqa: T201

    def tell(what: str, share: float | None) -> None:
        nonlocal pending
        if pending is not None:
            if pending.args == [what]:
                return
            pending.cancel()
            pending.join()
        if what not in said:
            pending = threading.Timer(_WORTH_SAYING_S, say, [what])
            pending.daemon = True
            pending.start()

    try:
        yield tell
    finally:
        if pending is not None:
            pending.cancel()
            pending.join()
