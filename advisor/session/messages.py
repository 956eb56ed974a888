"""What parent and child say to each other: length-prefixed pickles of plain dataclasses over a pipe pair. No torch."""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

from advisor.collector import collector_paused
from advisor.errors import AdvisorError
from advisor.options.base import Recipe
from advisor.trace.records import StepTrace, TraceTarget
from advisor.workload.spec import WorkloadDescription
from advisor.workload.target import TargetSpec

_LENGTH = struct.Struct("!Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Answered with `Started` once torch is imported: the limits on the user's code count from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Answered with a `WorkloadDescription`."""

    spec: TargetSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Answered with a `Traced`."""

    recipe: Recipe
    target: TraceTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Answered with a `Measurement`."""

    recipe: Recipe
    time_limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Ready to load."""

    torch: str | None  # its version; None where the interpreter has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    trace: StepTrace
    description: WorkloadDescription  # as far as it is known now


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The request raised an error meant for the user."""

    error: AdvisorError


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """The request ran into a bug of ours."""

    traceback: str


@collector_paused()
def pack(message: object) -> bytes:
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


@collector_paused()
def _loads(body: bytes | memoryview) -> Any:
    return pickle.loads(body)


def unpack(buffer: bytes | bytearray) -> Any | None:
    """The first message in `buffer`; None while it is incomplete."""
    if len(buffer) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(buffer)
    end = _LENGTH.size + length
    return _loads(memoryview(buffer)[_LENGTH.size : end]) if len(buffer) >= end else None


def read(stream: BinaryIO) -> Any | None:
    """The next message; None when the other side is gone."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(header)
    body = stream.read(length)
    return _loads(body) if len(body) == length else None
