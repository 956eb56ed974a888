"""Settings from three layers: flags, over `advisor.toml` or `[tool.advisor]`, over the file's own `ADVISOR`.

A setting has one name everywhere: `--global-batch` is `global_batch` in a file. Values are kept as text until the
winner is known, so that the report can show them as they were written.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from advisor.errors import UsageError
from advisor.units import parse_bytes, parse_count, parse_seconds, parse_usd, parse_usd_per_hour

if TYPE_CHECKING:
    from advisor.analysis import Request
    from advisor.report.model import Setting
    from advisor.workload.sequence_lengths import SequenceLengths
    from advisor.workload.target import TargetSpec

T = TypeVar("T")

# What is built: needed before the user's file is loaded, so its own ADVISOR can't say it.
TARGET_SETTINGS = (
    *("model", "batch", "loss", "optimizer", "input", "target", "call", "skip_failing_statements", "python"),
    *("time_limit", "memory_limit"),
)
REQUEST_SETTINGS = (
    *("device", "device_memory", "cluster", "max_devices", "micro_batch", "global_batch", "samples", "tokens", "steps"),
    *("deadline", "budget", "price", "lr", "fine_tune", "sequence_lengths", "option", "plan", "measure"),
)
_REPEATABLE = ("input", "target", "option")
# Ways to say one thing: the highest layer that says any of them is the only one heard.
_EXCLUSIVE = (("samples", "tokens", "steps"), ("device", "device_memory"))

Values = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Settings from one place; one text for each, several where it is repeatable."""

    origin: str  # "flag", "advisor.toml", "ADVISOR in model.py"
    values: Values
    folder: Path = field(default_factory=Path)  # relative paths in the values start here


def flag_layer(parameters: Mapping[str, object]) -> Layer:
    """The flags that were given, from the command's parameters."""
    values: dict[str, tuple[str, ...]] = {}
    for name, value in parameters.items():
        if name == "no_measure":
            values |= {"measure": ("false",)} if value else {}
        elif name in TARGET_SETTINGS or name in REQUEST_SETTINGS:
            values |= {name: _texts(value)} if value not in (None, False, [], ()) else {}
    return Layer(origin="flag", values=values)


def file_layer(start: Path, *, config: Path | None = None) -> Layer | None:
    """The nearest `advisor.toml`, or `pyproject.toml` with a `[tool.advisor]`, from `start` upwards; or `config`."""
    if config is not None:
        return _read(config, required=True)
    for folder in (start, *start.parents):
        for name in ("advisor.toml", "pyproject.toml"):
            if (folder / name).is_file() and (found := _read(folder / name, required=False)) is not None:
                return found
    return None


def _read(path: Path, *, required: bool) -> Layer | None:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from None
    if path.name == "pyproject.toml":
        tool = content.get("tool")
        table = tool.get("advisor") if isinstance(tool, dict) else None
        if table is None and not required:
            return None
        content = table if isinstance(table, dict) else {}
    return layer(path.name, content, known=(*TARGET_SETTINGS, *REQUEST_SETTINGS), folder=path.parent)


def advisor_layer(settings: Mapping[str, str], *, target: str) -> Layer:
    """The user's file's own `ADVISOR`: the request, not what is built."""
    file = Path(target.partition(":")[0]).name
    return layer(f"ADVISOR in {file}", settings, known=REQUEST_SETTINGS)


def layer(origin: str, content: Mapping[str, object], *, known: Sequence[str], folder: Path | None = None) -> Layer:
    """A layer whose names are checked. "global-batch" is accepted for `global_batch`, as TOML users write it."""
    values: dict[str, tuple[str, ...]] = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=2)
            meant = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
            raise UsageError(f"{origin}: unknown setting {key!r}", hint=f"{meant}known: {', '.join(known)}")
        texts = _texts(value)
        if len(texts) != 1 and name not in _REPEATABLE:
            raise UsageError(f"{origin}: {key} takes one value, not {value!r}")
        values[name] = texts
    return Layer(origin=origin, values=values, folder=folder or Path())


def _texts(value: object) -> tuple[str, ...]:
    match value:
        case bool():
            return ("true" if value else "false",)
        case Mapping():
            return tuple(f"{name}={text}" for name, text in value.items())
        case list() | tuple():
            return tuple(text for item in value for text in _texts(item))
        case _:
            return (str(value),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The winner of each setting, and the layers it won over."""

    winners: Mapping[str, Layer]
    losers: Mapping[str, tuple[Layer, ...]]

    def texts(self, name: str) -> tuple[str, ...]:
        return self.winners[name].values[name] if name in self.winners else ()

    def text(self, name: str) -> str | None:
        return next(iter(self.texts(name)), None)

    def parsed(self, name: str, parse: Callable[[str], T]) -> T | None:
        """The value, or None where nobody said it. An error says who wrote what can't be read."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return parse(text)
        except UsageError as error:
            raise UsageError(f"{self._said(name)}: {error.message}", hint=error.hint) from None

    def positive(self, name: str, parse: Callable[[str], float]) -> float | None:
        value = self.parsed(name, parse)
        if value is not None and not value > 0:
            raise UsageError(
                f"{self._said(name)}: {self.text(name)!r} is not above zero", hint="it must be more than 0"
            )
        return value

    def count(self, name: str) -> int | None:
        value = self.positive(name, parse_count)
        return None if value is None else int(value)

    def path_or_name(self, name: str) -> str | None:
        """A profile: its name, or a path that starts at the folder of the file that says it."""
        text = self.text(name)
        if text is None or not text.endswith(".toml"):
            return text
        return str(self.winners[name].folder / text)

    def sequence_lengths(self) -> SequenceLengths | None:
        """A file of lengths starts at the folder of the file that says it."""
        from advisor.workload.sequence_lengths import parse

        name = "sequence_lengths"
        folder = self.winners[name].folder if name in self.winners else None
        return self.parsed(name, lambda text: parse(text, folder=folder))

    def settings(self) -> tuple[Setting, ...]:
        """What the report prints, by name: the value, who won and over what."""
        from advisor.report.model import Setting

        return tuple(
            Setting(name=name, value=text, origin=self._origin(name))
            for name in sorted(self.winners)
            for text in self.texts(name)
        )

    def _origin(self, name: str) -> str:
        over = [f"{', '.join(loser.values[name])} from {loser.origin}" for loser in self.losers.get(name, ())]
        return ", over ".join((self.winners[name].origin, *over))

    def _said(self, name: str) -> str:
        origin = self.winners[name].origin
        return f"--{name.replace('_', '-')}" if origin == "flag" else f"{name} ({origin})"


def merge(*layers: Layer | None) -> Merged:
    """Layers from the strongest to the weakest."""
    winners: dict[str, Layer] = {}
    losers: dict[str, tuple[Layer, ...]] = {}
    present = [found for found in layers if found is not None]
    for found in present:
        _refuse_contradiction(found)
        taken = dict(winners)
        for name in found.values:
            rivals = next((group for group in _EXCLUSIVE if name in group), (name,))
            if name in taken:
                losers[name] = (*losers.get(name, ()), found)
            elif not any(rival in taken for rival in rivals):
                winners[name] = found
    return Merged(winners=winners, losers=losers)


def _refuse_contradiction(found: Layer) -> None:
    for group in _EXCLUSIVE:
        said = [name for name in group if name in found.values]
        if len(said) > 1:
            names = " and ".join(f"--{name.replace('_', '-')}" if found.origin == "flag" else name for name in said)
            where = "" if found.origin == "flag" else f"{found.origin}: "
            raise UsageError(f"{where}{names} contradict each other", hint="say one of them")


def target_spec(merged: Merged, *, target: str) -> TargetSpec:
    from advisor.workload.target import Limits, TargetSpec

    memory = merged.positive("memory_limit", parse_bytes)
    limits = Limits(
        time_s=merged.positive("time_limit", parse_seconds) or Limits().time_s,
        memory_bytes=None if memory is None else int(memory),
    )
    return TargetSpec(
        target=target,
        model=merged.text("model"),
        inputs=merged.texts("input"),
        targets=merged.texts("target"),
        batch=merged.text("batch"),
        loss=merged.text("loss"),
        optimizer=merged.text("optimizer"),
        call=merged.text("call"),
        skip_failing_statements=merged.parsed("skip_failing_statements", _truth) or False,
        python=merged.text("python"),
        limits=limits,
    )


def request(merged: Merged) -> Request:
    from advisor.analysis import Request

    memory = merged.positive("device_memory", parse_bytes)
    return Request(
        device=merged.path_or_name("device"),
        device_memory_bytes=None if memory is None else int(memory),
        cluster=merged.path_or_name("cluster"),
        max_devices=merged.count("max_devices") or Request().max_devices,
        micro_batch_size=merged.count("micro_batch"),
        global_batch_size=merged.count("global_batch"),
        samples=merged.count("samples"),
        tokens=merged.count("tokens"),
        steps=merged.count("steps"),
        deadline_s=merged.positive("deadline", parse_seconds),
        budget_usd=merged.positive("budget", parse_usd),
        price_usd_per_hour=merged.positive("price", parse_usd_per_hour),
        learning_rate=merged.positive("lr", _number),
        fine_tune=merged.parsed("fine_tune", _truth) or False,
        sequence_lengths=merged.sequence_lengths(),
        choices=_choices(merged.texts("option")),
        plan=merged.text("plan"),
        measure=merged.parsed("measure", _truth) is not False,
        settings=merged.settings(),
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a number", hint="write one such as 3e-4") from None


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UsageError(f"{text!r} is neither true nor false", hint="write true or false")
    return text.lower() == "true"


def _choices(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """`--option NAME=VALUE`, sorted by name as in a recipe."""
    choices: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise UsageError(f"--option {text!r} is not NAME=VALUE", hint="such as precision=amp-bf16")
        if choices.setdefault(name, value) != value:
            raise UsageError(f"--option {name} is said twice: {choices[name]!r} and {value!r}")
    return tuple(sorted(choices.items()))
