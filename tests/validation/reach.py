"""Real model files as a stranger would type them: right at once, with the flags the errors name, or a clear error.

    python tests/validation/reach.py --checkouts FOLDER [--only NAME ...] [--errors FOLDER] [--table FILE]

FOLDER/OWNER/NAME holds each repository of `reach.csv` at its commit. The rows are entry points of public repositories,
found by a survey of files named model.py, net.py, train.py and the like; the expressions are the survey's. No code of
theirs is here: fetch it from their own repositories, and install what they import.

Each row is first estimated without a flag. Where that ends in an error, the flags its message names are added from the
row, as often as messages name new ones; last of all, everything the row knows is given at once. The model is right when
it has the parameters that the survey counted (nanochat: on the meta device, the survey counted a smaller one), or where
a warning doubts the size of a default. `reach_outcomes.csv` holds the last outcome of each row.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

COMMAND = (sys.executable, "-m", "advisor", "estimate")
JOB = ("--device", "a100-sxm4-80gb", "--micro-batch", "2", "-q")  # the survey counted at two samples
LIMIT_S = 180.0  # the surveyed rows took 8 s at most, on an idle machine
FLAGS = ("model", "batch", "target", "loss", "call")
SWITCH = "skip-failing-statements"
_NAMED = re.compile(rf"--(model|batch|input|target|loss|call|{SWITCH})\b")


class Kind(StrEnum):
    AT_ONCE = "right at once"
    WITH_NAMED = "right with the flags the errors named"
    WITH_ALL = "right with all flags, not all of them named"
    CLEAR = "clear error"
    WRONG = "wrong or unclear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    repository: str
    commit: str
    path: str
    flags: dict[str, str]  # without dashes -> value
    parameters: int | None
    runs: bool  # for real, on the survey's machine, with the packages it had

    def agrees(self, attempt: Attempt) -> bool:
        return self.parameters in (None, attempt.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One command line and how it ended."""

    flags: tuple[str, ...]
    exit_code: int
    error: str = ""
    parameters: int | None = None
    loss: str = ""
    warned: bool = False  # that the size is that of a large default, and may not be what is trained

    @property
    def is_clear(self) -> bool:
        """A line of the user's or a flag to act on, and nothing of ours."""
        acts = "hint: " in self.error or re.search(r"\.py:\d+|--\w+", self.error)
        return self.exit_code == 2 and bool(acts) and "Traceback" not in self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    row: Row
    attempts: tuple[Attempt, ...]
    seconds: float

    @property
    def kind(self) -> Kind:
        last = self.attempts[-1]
        if any(a.exit_code == 0 and not a.warned and not self.row.agrees(a) for a in self.attempts):
            return Kind.WRONG
        if last.exit_code != 0:
            return Kind.CLEAR if all(a.is_clear for a in self.attempts) else Kind.WRONG
        if len(self.attempts) == 1:
            return Kind.AT_ONCE
        named = all(
            before.warned or set(_named(before.error)) & set(after.flags) for before, after in _pairs(self.attempts)
        )
        return Kind.WITH_NAMED if named else Kind.WITH_ALL


def _pairs(attempts: Sequence[Attempt]) -> Iterator[tuple[Attempt, Attempt]]:
    return itertools.pairwise(attempts)


def _named(error: str) -> list[str]:
    """Flags that a message names, as columns of the table."""
    return list(dict.fromkeys("batch" if name == "input" else name for name in _NAMED.findall(error)))


def read_rows(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as lines:
        return [
            Row(
                name=record["name"],
                repository=record["repository"],
                commit=record["commit"],
                path=record["path"],
                flags={name: record[name] for name in FLAGS if record[name]} | {SWITCH: ""},
                parameters=int(record["parameters"]) if record["parameters"] else None,
                runs=record["runs"] == "yes",
            )
            for record in csv.DictReader(lines)
        ]


def attempt(row: Row, flags: Sequence[str], *, checkout: Path) -> Attempt:
    given = [text for name in flags for text in (f"--{name}", row.flags[name]) if text]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [*COMMAND, row.path, *given, *JOB, "-o", str(report)]
        try:
            ended = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return Attempt(flags=tuple(flags), exit_code=-1, error=f"longer than {LIMIT_S:g} s")
        if ended.returncode != 0:
            return Attempt(flags=tuple(flags), exit_code=ended.returncode, error=ended.stderr)
        content = json.loads(report.read_text(encoding="utf-8"))
    description = content["description"]
    warned = any("is this what is trained?" in guess["why"] for guess in description["guesses"])
    return Attempt(
        flags=tuple(flags),
        exit_code=0,
        parameters=content["num_parameters"],
        loss=description["loss"],
        warned=warned,
    )


def try_row(row: Row, *, checkout: Path) -> Outcome:
    start = time.monotonic()
    attempts = [attempt(row, (), checkout=checkout)]
    while attempts[-1].exit_code == 2 or (attempts[-1].warned and not row.agrees(attempts[-1])):
        last = attempts[-1]
        more = [name for name in _named(last.error) if name in row.flags and name not in last.flags]
        if "loss" in more and "target" in row.flags and "target" not in last.flags:
            more.append("target")  # the row's loss compares with it
        flags = tuple(name for name in (*FLAGS, SWITCH) if name in (*last.flags, *more))
        if not more:  # everything the row knows, and what a message asked for
            flags = tuple(name for name in (*FLAGS, SWITCH) if name in row.flags and name in (*FLAGS, *last.flags))
        if flags == last.flags:
            break
        attempts.append(attempt(row, flags, checkout=checkout))
    return Outcome(row=row, attempts=tuple(attempts), seconds=time.monotonic() - start)


def summary(outcomes: Iterable[Outcome]) -> str:
    counts = Counter(outcome.kind for outcome in outcomes)
    return "; ".join(f"{kind}: {counts[kind]}" for kind in Kind)


def write_table(outcomes: Iterable[Outcome], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(("name", "runs", "outcome", "command_lines", "flags", "parameters", "proxy_loss"))
        for outcome in outcomes:
            last = outcome.attempts[-1]
            proxy = "yes" if last.loss.startswith("proxy") else ""
            runs = "yes" if outcome.row.runs else "no"
            size = "" if last.parameters is None else last.parameters
            flags = " ".join(last.flags)
            writer.writerow((outcome.row.name, runs, outcome.kind, len(outcome.attempts), flags, size, proxy))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkouts", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--errors", type=Path, help="every message, one file for each row")
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    outcomes = []
    for row in read_rows(Path(__file__).with_suffix(".csv")):
        checkout = arguments.checkouts / row.repository
        if (arguments.only and row.name not in arguments.only) or not checkout.is_dir():
            continue
        outcome = try_row(row, checkout=checkout.resolve())
        outcomes.append(outcome)
        tried = " | ".join(f"{' '.join(a.flags) or '-'}: {a.exit_code}" for a in outcome.attempts)
        sys.stdout.write(f"{row.name:18s} {outcome.kind:45s} {outcome.seconds:5.0f} s  {tried}\n")
        sys.stdout.flush()
        if arguments.errors:
            arguments.errors.mkdir(parents=True, exist_ok=True)
            texts = [f"$ {' '.join(a.flags)}\n{a.error or a}" for a in outcome.attempts]
            arguments.errors.joinpath(f"{row.name}.txt").write_text("\n".join(texts), encoding="utf-8")
    if arguments.table:
        write_table(outcomes, arguments.table)
    sys.stdout.write(summary(outcomes) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
