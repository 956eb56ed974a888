"""What the user says about the job: TARGET and the flags beside it, parsed and not yet loaded. No torch."""

from __future__ import annotations

import difflib
import re
import shlex
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from advisor.errors import UsageError, WorkloadError
from advisor.workload.calls import python_files

DTYPES = {
    "bool": "bool",
    "u8": "uint8",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
}
LOSSES = ("ce", "mse", "bce", "nll", "l1")
OPTIMIZERS = ("adamw", "adam", "sgd", "rmsprop", "adagrad", "adadelta", "adamax", "nadam", "radam", "asgd", "adafactor")

_MODULE_CLASS = re.compile(r"^class \w+\(.*(?:Module|PreTrainedModel)\b.*\)\s*:", re.MULTILINE)
_MAX_LISTED = 10
_FORM = re.compile(
    r"(?P<dtype>\w+?)"
    r"(?:\[(?P<low>[^,\]]+),(?P<high>[^,\)]+)\))?"
    r"(?::(?P<shape>\d+(?:x\d+)*))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the user's code may take, for each request to the child process.

    The slowest of 107 surveyed public files took 8 s to trace and 5 s to import: the default leaves a slow, busy
    machine twenty times that, and still ends a hang.
    """

    time_s: float = 300.0
    memory_bytes: int | None = None  # resident memory of the child; None: what this machine has free


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    """Everything a user can say about the workload on the command line."""

    target: str
    model: str | None = None  # --model: Name, Name(...), other.py:make, config.json
    inputs: tuple[str, ...] = ()  # --input, repeatable: short forms
    targets: tuple[str, ...] = ()  # --target, repeatable: short forms or expressions
    batch: str | None = None  # --batch: expression
    loss: str | None = None  # --loss: a name of LOSSES or an expression
    optimizer: str | None = None  # --optimizer: a name of OPTIMIZERS or an expression
    call: str | None = None  # --call: expression used instead of model(*batch)
    skip_failing_statements: bool = False  # --skip-failing-statements
    python: str | None = None  # --python: the interpreter that runs the file, in place of this one
    limits: Limits = field(default_factory=Limits)

    def command(self, *more: str) -> str:
        """What was typed, with more flags: a command line ready to edit."""
        return " ".join(["advisor assess", shlex.quote(self.target), *self._flags(), *more])

    def _flags(self) -> list[str]:
        pairs = [text.partition(" ") for text in self.expressions()]
        pairs += [("--python", " ", self.python)] if self.python else []
        return [f"{flag} {shlex.quote(value)}" if value else flag for flag, _, value in pairs]

    def expressions(self) -> tuple[str, ...]:
        """What was said beside TARGET, as the flags were typed: part of the input's identity."""
        given = [("model", self.model), ("batch", self.batch), ("loss", self.loss)]
        given += [("optimizer", self.optimizer), ("call", self.call)]
        given += [("input", text) for text in self.inputs] + [("target", text) for text in self.targets]
        texts = [f"--{flag} {text}" for flag, text in given if text is not None]
        return (*texts, "--skip-failing-statements") if self.skip_failing_statements else tuple(texts)


class TargetKind(StrEnum):
    FILE = "file"
    MODULE = "module"
    CONFIG = "config"  # a Hugging Face config.json
    TIMM = "timm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """TARGET taken apart."""

    kind: TargetKind
    location: str  # path, dotted module name, or name of a timm model
    name: str | None = None  # what stood after the colon

    @property
    def path(self) -> Path:
        return Path(self.location)


def parse_target(text: str) -> Target:
    """`model.py`, `model.py:Name`, `package.module:Name`, a `config.json` or its folder, or `timm:NAME`."""
    if text.startswith("timm:"):
        return Target(kind=TargetKind.TIMM, location=text.removeprefix("timm:"))
    if (match := re.fullmatch(r"(.+\.py)(?::(.+))?", text)) and (found := Path(match[1])).suffix == ".py":
        return Target(kind=TargetKind.FILE, location=str(_existing_file(found)), name=match[2])
    path = Path(text)
    if path.is_dir():
        return Target(kind=TargetKind.CONFIG, location=str(_config_in(path)))
    if path.suffix == ".json":
        return Target(kind=TargetKind.CONFIG, location=str(_existing_file(path)))
    if path.is_file():
        raise WorkloadError(f"{text} is not a Python file", hint="TARGET is a model.py, a config.json or timm:NAME")
    if match := re.fullmatch(r"([A-Za-z_]\w*(?:\.\w+)*):(.+)", text):
        return Target(kind=TargetKind.MODULE, location=match[1], name=match[2])
    _existing_file(path)
    raise AssertionError("unreachable: the file does not exist")


def _existing_file(path: Path) -> Path:
    if path.is_file():
        return path
    if path.is_dir():
        raise WorkloadError(f"{path} is a folder, not a file")
    folder = path.parent
    names = [p.name for p in folder.iterdir() if p.suffix in {".py", ".json"}] if folder.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=3) or difflib.get_close_matches(f"{path.name}.py", names, n=3)
    hint = f"did you mean {' or '.join(str(folder / name) for name in close)}?" if close else None
    forms = "TARGET is model.py, model.py:Name, package.module:Name, a config.json or its folder, or timm:NAME"
    raise WorkloadError(f"no such file: {path}", hint=hint or forms)


def _config_in(folder: Path) -> Path:
    config = folder / "config.json"
    if config.is_file():
        return config
    files = sorted((p for p in python_files(folder) if _MODULE_CLASS.search(_text(p))), key=lambda p: (len(p.parts), p))
    if not files:
        raise WorkloadError(f"{folder} is a folder without a config.json and without a file that defines an nn.Module")
    lines = ["name one:", *(f"  advisor assess {shlex.quote(str(path))}" for path in files[:_MAX_LISTED])]
    more = [f"  and {len(files) - _MAX_LISTED} more"] if len(files) > _MAX_LISTED else []
    raise WorkloadError(
        f"{folder} is a folder without a config.json, and {len(files)} of its files define models",
        hint="\n".join([*lines, *more]),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorForm:
    """One tensor of a batch, written short: `f32:3x224x224`, `i64[0,50257):1024`. The batch dimension comes first."""

    dtype: str  # torch's name without the prefix
    shape: tuple[int, ...]  # without the batch dimension
    low: float | None = None
    high: float | None = None  # exclusive

    def __str__(self) -> str:
        bounds = "" if self.low is None or self.high is None else f" in [{self.low:g}, {self.high:g})"
        return f"{self.dtype} ({', '.join(('B', *map(str, self.shape)))}){bounds}"


def is_tensor_form(text: str) -> bool:
    """Whether `text` starts like a short form; anything else is an expression."""
    return re.split(r"[\[:]", text.strip(), maxsplit=1)[0] in {*DTYPES, *DTYPES.values()}


def parse_tensor_form(text: str, *, flag: str) -> TensorForm:
    match = _FORM.fullmatch(text.strip().replace(" ", ""))
    examples = "as in f32:3x224x224, i64[0,50257):1024 or i64[0,1000); the batch dimension is added"
    if match is None:
        raise UsageError(f"{flag} {text!r} is not DTYPE[LOW,HIGH):SHAPE", hint=examples)
    dtype = DTYPES.get(match["dtype"], match["dtype"])
    if dtype not in DTYPES.values():
        close = difflib.get_close_matches(match["dtype"], DTYPES, n=1, cutoff=0.3)
        hint = f"did you mean {close[0]}? Known: {', '.join(DTYPES)}" if close else f"known: {', '.join(DTYPES)}"
        raise UsageError(f"{flag} {text!r}: no dtype {match['dtype']!r}", hint=hint)
    low, high = (_bound(match[name], form=text, flag=flag) for name in ("low", "high"))
    if low is not None and high is not None and low >= high:
        raise UsageError(f"{flag} {text!r}: [{low:g}, {high:g}) is empty")
    if low is None and dtype.startswith(("int", "uint")):
        # Indices outside an embedding are a device assertion later: never guess a vocabulary.
        raise UsageError(f"{flag} {text!r}: integers need a range", hint=f"write {match['dtype']}[0,HIGH):SHAPE")
    shape = tuple(int(size) for size in match["shape"].split("x")) if match["shape"] else ()
    if 0 in shape:
        raise UsageError(f"{flag} {text!r}: a dimension of size 0")
    return TensorForm(dtype=dtype, shape=shape, low=low, high=high)


def _bound(text: str | None, *, form: str, flag: str) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{flag} {form!r}: {text!r} is not a number") from None
