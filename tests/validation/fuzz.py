"""Mutated model files and expressions: advisor answers or says what is wrong, and never fails itself.

    python tests/validation/fuzz.py [--cases 2000] [--seed 0] [--limit 20]

Each case is a file of tests/models with some of its lines, names and numbers changed, or flags with some characters
changed. It is loaded and traced in a process of its own, forked after torch was imported. Counted: answered, told what
is wrong (an `AdvisorError`), ended by the time limit or a signal (the guard reports both), and bugs: any other
exception, which the command line would end in exit code 101. A case is its number: `--seed N --cases 1` runs it again.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from advisor.options.base import Recipe
from advisor.session import messages
from advisor.session.serve import _Server
from advisor.trace.records import TraceTarget
from advisor.workload.target import TargetSpec

MODELS = Path(__file__).parents[1] / "models"
GPU = TraceTarget(device_type="cuda", compute_capability=(8, 0))
ADDRESS_SPACE = 16 << 30  # so that a mutated size ends the case and not the machine
ANSWERED, TOLD, BUG, ENDED = "answered", "told what is wrong", "bug", "ended by a limit or a signal"

# Files of tests/models with the flags that make them work.
BASES: tuple[tuple[str, dict[str, object]], ...] = (
    ("mlp.py", {}),
    ("mlp.py", {"inputs": ("f32:64",), "targets": ("i64[0,10)",), "loss": "ce", "optimizer": "sgd"}),
    ("cnn.py", {"inputs": ("f32:3x32x32",), "targets": ("i64[0,10)",), "loss": "F.cross_entropy(out, target)"}),
    ("gpt.py", {}),
    (
        "gpt.py",
        {"model": "GPT(GPTConfig())", "batch": "torch.randint(0, 512, (B, 64)), torch.randint(0, 512, (B, 64))"},
    ),
    ("lit.py", {"model": "LitClassifier(width=8)", "batch": "(torch.randn(B, 784), torch.randint(0, 10, (B,)))"}),
    ("gan.py", {"model": "Generator()", "inputs": ("f32:100",), "call": "model(*batch)", "loss": "out.mean()"}),
    (
        "lstm.py",
        {
            "model": "RNNModel(100, 8, 8, 1)",
            "batch": "torch.randint(0, 100, (5, B)), model.init_hidden(B)",
            "loss": "out[0].mean()",
        },
    ),
    ("moe.py", {}),
    ("unet.py", {"inputs": ("f32:1x32x32",), "loss": "out.pow(2).mean()"}),
)
_TOKENS = re.compile(r"[A-Za-z_]\w*|\d+|[-+*/%=<>,:.()\[\]{}]")
_ODD = (
    "0",
    "-1",
    "1e9",
    "None",
    "'x'",
    "()",
    "float('nan')",
    "10**12",
    "[]",
    "lambda: 0",
    "*",
    "\x00",
    "\u2028",
    "B",
    "out",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    number: int
    source: str
    flags: dict[str, object]


def make_case(number: int) -> Case:
    rng = random.Random(number)
    name, flags = rng.choice(BASES)
    source = (MODELS / name).read_text(encoding="utf-8")
    if flags and rng.random() < 0.5:
        return Case(number=number, source=source, flags=_mutated_flags(rng, dict(flags)))
    for _ in range(rng.randint(1, 3)):
        source = (
            _still_python(rng, source) if rng.random() < 0.9 else rng.choice((_change_character, _cut))(rng, source)
        )
    return Case(number=number, source=source, flags=dict(flags))


def _still_python(rng: random.Random, source: str) -> str:
    """Syntax errors are one case among many: most changes must get further."""
    for _ in range(20):
        changed = rng.choice((_change_line, _change_token, _change_token))(rng, source)
        with contextlib.suppress(SyntaxError, ValueError):
            ast.parse(changed)
            return changed
    return source


def _mutated_flags(rng: random.Random, flags: dict[str, object]) -> dict[str, object]:
    for name in rng.sample(sorted(flags), k=rng.randint(1, len(flags))):
        value = flags[name]
        change: Callable[[random.Random, str], str] = rng.choice((_change_token, _change_character, _change_character))
        flags[name] = (
            tuple(change(rng, text) for text in value) if isinstance(value, tuple) else change(rng, str(value))
        )
    return flags


def _change_line(rng: random.Random, source: str) -> str:
    lines = source.splitlines(keepends=True) or ["\n"]
    at = rng.randrange(len(lines))
    kind = rng.randrange(3)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, rng.choice(lines))
    else:
        other = rng.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    return "".join(lines)


def _change_token(rng: random.Random, source: str) -> str:
    tokens = list(_TOKENS.finditer(source))
    if not tokens:
        return source
    at = rng.choice(tokens)
    alike = [token[0] for token in tokens if token[0].isidentifier() == at[0].isidentifier()]
    put = rng.choice(_ODD) if rng.random() < 0.3 else rng.choice(alike)
    return source[: at.start()] + put + source[at.end() :]


def _change_character(rng: random.Random, source: str) -> str:
    at = rng.randrange(len(source) + 1)
    put = chr(rng.choice((rng.randrange(32, 127), rng.randrange(0x110000 - 0x800)))).replace("\ud800", "x")
    return source[:at] + put.encode("utf-8", "replace").decode() + source[at + rng.randrange(2) :]


def _cut(rng: random.Random, source: str) -> str:
    return source[: rng.randrange(len(source))]


def run_case(case: Case, *, limit_s: float) -> tuple[str, str]:
    """The outcome, and for a bug its traceback."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "bug.txt")
        path = Path(folder, "model.py")
        path.write_text(case.source, encoding="utf-8")
        pid = os.fork()
        if pid == 0:
            _child(case, path, report)
        status = _wait(pid, limit_s)
        text = report.read_text(encoding="utf-8") if report.exists() else ""
    if status is None or os.WIFSIGNALED(status):
        return ENDED, ""
    outcome = {0: ANSWERED, 2: TOLD, 101: BUG}.get(os.WEXITSTATUS(status), ENDED)  # others: the file's own os._exit
    return outcome, text


def _child(case: Case, path: Path, report: Path) -> None:
    code = 101
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        os.chdir(path.parent)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        server = _Server()
        spec = replace(TargetSpec(target=str(path)), **case.flags)  # type: ignore[arg-type]
        answer = server.answer(messages.Load(spec=spec))
        if not isinstance(answer, messages.Failed | messages.Crashed):
            answer = server.answer(messages.Trace(recipe=Recipe(micro_batch_size=2), target=GPU))
        if isinstance(answer, messages.Crashed):
            report.write_text(answer.traceback, encoding="utf-8")
        code = 101 if isinstance(answer, messages.Crashed) else 2 if isinstance(answer, messages.Failed) else 0
        messages.pack(answer)
    finally:
        os._exit(code)


def _wait(pid: int, limit_s: float) -> int | None:
    """The exit status; None after ending what went on for too long, and all that it started."""
    deadline = time.monotonic() + limit_s
    status: int | None = None
    while time.monotonic() < deadline:
        done, found = os.waitpid(pid, os.WNOHANG)
        if done:
            status = found
            break
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if status is None:
        os.waitpid(pid, 0)
    return status


def warm_up() -> None:
    """What torch imports for its first trace takes longer than most cases: once, before the forks."""
    server = _Server()
    server.answer(messages.Load(spec=TargetSpec(target=str(MODELS / "mlp.py"))))
    server.answer(messages.Trace(recipe=Recipe(micro_batch_size=2), target=GPU))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds for each case")
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)  # a fork has no threads of its parent's pool
    warm_up()
    counts: Counter[str] = Counter()
    for number in range(arguments.seed, arguments.seed + arguments.cases):
        case = make_case(number)
        outcome, traceback = run_case(case, limit_s=arguments.limit)
        counts[outcome] += 1
        if outcome is BUG:
            sys.stdout.write(f"case {number}: {case.flags}\n{traceback}\n")
        elif outcome is ENDED:
            sys.stdout.write(f"case {number}: {outcome}\n")
        sys.stdout.flush()
    sys.stdout.write("; ".join(f"{name}: {counts[name]}" for name in (ANSWERED, TOLD, ENDED, BUG)) + "\n")
    return 1 if counts[BUG] else 0


if __name__ == "__main__":
    sys.exit(main())
