"""How long the samples of a data set are, in tokens: how full a padded row of the batch is, for packing. No torch.

A share such as "0.43", or a file: one length a line (.jsonl too), or a JSON list of lengths (.json).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from advisor.errors import UsageError
from advisor.units import format_count, format_percent

_LARGEST_FILE_BYTES = 500_000_000  # fifty million lengths
_HINT = "give the mean share of a row that is not padding, as 0.43, or a file with one length (in tokens) a line"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLengths:
    """Either `share` is stated, or `lengths` are given."""

    source: str  # as it was said: "0.43", "lengths.txt"
    share: float | None = None
    lengths: tuple[int, ...] = ()

    def mean_fill(self, row_tokens: int) -> float:
        """Share of the tokens of a row that are not padding, over all samples: sum(min(l, L)) / (n L)."""
        if self.share is not None:
            return self.share
        kept = sum(min(length, row_tokens) for length in self.lengths)
        return kept / (len(self.lengths) * row_tokens)

    def note(self, row_tokens: int) -> str:
        """One line for the report."""
        full = f"rows of {row_tokens} tokens are {format_percent(self.mean_fill(row_tokens))} full on average"
        if self.share is not None:
            return f"sequence lengths: {full}, as stated"
        cut = sum(length > row_tokens for length in self.lengths)
        share = format_percent(cut / len(self.lengths))
        truncated = (
            f"; {format_count(cut)} longer ones ({share}) are cut to {row_tokens}" if cut else "; none is longer"
        )
        return f"sequence lengths: {full}, by {format_count(len(self.lengths))} samples of {self.source}{truncated}"


def parse(text: str, *, folder: Path | None = None) -> SequenceLengths:
    """A share or the path of a file, from `folder` on. Raises `UsageError` for anything else."""
    try:
        share = float(text)
    except ValueError:
        return _read((folder or Path()) / text, source=text)
    if not 0 < share <= 1:  # "nan" too
        raise UsageError(f"{text!r} is no share of a row: it must be above 0 and at most 1", hint=_HINT)
    return SequenceLengths(source=text, share=share)


def of_lengths(lengths: Sequence[object], *, source: str) -> SequenceLengths:
    """Checks each length; an error says which one is wrong."""
    for number, length in enumerate(lengths, start=1):
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            raise _no_length(f"{source}, item {number}", length)
    return _some(tuple(lengths), source)  # type: ignore[arg-type]  # checked above


def _read(path: Path, *, source: str) -> SequenceLengths:
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            size = f"{_LARGEST_FILE_BYTES // 10**6} MB"
            raise UsageError(f"{source} is larger than {size}", hint="a sample of a million lengths says as much")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{source!r} is neither a number nor a file that can be read: {error.strerror or error}", hint=_HINT
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is no text: {error.reason} at byte {error.start}", hint=_HINT) from None
    if path.suffix == ".json":
        return of_lengths(_json_list(text, source), source=source)
    lengths = [
        _length(line, where=f"{source}:{number}")
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    ]
    return _some(tuple(lengths), source)


def _json_list(text: str, source: str) -> Sequence[object]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{source}:{error.lineno}: not JSON: {error.msg}", hint="a list such as [512, 77]") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a list nested without end
        raise UsageError(f"{source} is no list of lengths: {error}", hint="a list such as [512, 77]") from None
    if not isinstance(content, list):
        raise UsageError(f"{source} holds no list but {_shown(content)}", hint="a list such as [512, 77]")
    return content


def _length(line: str, *, where: str) -> int:
    try:
        length = int(line)
    except ValueError:
        raise _no_length(where, line.strip()) from None
    if length < 1:
        raise _no_length(where, length)
    return length


def _some(lengths: tuple[int, ...], source: str) -> SequenceLengths:
    if not lengths:
        raise UsageError(f"{source} holds no length", hint=_HINT)
    if max(lengths) > math.ldexp(1, 53):
        raise UsageError(f"{source} holds a length of {max(lengths):.3g} tokens", hint="lengths are in tokens")
    return SequenceLengths(source=source, lengths=lengths)


def _no_length(where: str, found: object) -> UsageError:
    return UsageError(
        f"{where}: {_shown(found)} is no length", hint="a whole number of tokens is due, one a line, 1 or more"
    )


def _shown(found: object) -> str:
    text = repr(found)
    return text if len(text) <= 40 else f"{text[:39]}…"
