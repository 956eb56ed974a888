"""Python's cyclic garbage collector, out of the way of work that makes hundreds of thousands of small records.

It walks all of them again and again to find cycles, and records form none: a third of the time, and nothing freed.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collection inside, unless called for; also a decorator."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
