"""The Python API, for notebooks: the three questions, on your own functions or on a target."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from advisor.analysis import (
    MEASURE_LIMIT_S,
    Request,
    assess_session,
    configuration,
    plugins,
    quietly,
    recipe_of,
)
from advisor.cost.estimate import Estimate
from advisor.errors import UsageError
from advisor.measure.result import Measurement
from advisor.report.model import Report, Setting
from advisor.session.base import Session
from advisor.workload import sequence_lengths
from advisor.workload.sequence_lengths import SequenceLengths
from advisor.workload.spec import Workload, WorkloadDescription


def assess(workload: Workload | str | os.PathLike[str], **settings: Any) -> Report:
    """The whole advice, for notebooks; `settings` as the command's flags.

    Args:
        workload: a `Workload` of your own functions (traced in this process) or a target as on the command line.
        **settings: device, cluster, micro_batch, global_batch, samples, deadline, ... ; and any option by name
            (precision="amp-bf16"), which is then part of the step as it is.

    Raises:
        AdvisorError: the question could not be answered.
    """
    with _session(workload) as session:
        return assess_session(session, _request(settings))


def estimate(workload: Workload | str | os.PathLike[str], **settings: Any) -> Estimate:
    """Predicted memory (bytes) and time (seconds) of one exact configuration; arguments as in `assess`."""
    with _session(workload) as session:
        candidate, *_ = configuration(session, _request(settings), quietly)
        return candidate.estimate


def measure(workload: Workload | str | os.PathLike[str], **settings: Any) -> Measurement:
    """What one configuration really takes on this machine; arguments as in `assess`."""
    with _session(workload) as session:
        recipe = recipe_of(_request(settings))
        return session.measure(recipe, time_limit_s=MEASURE_LIMIT_S)


@contextmanager
def _session(workload: Workload | str | os.PathLike[str]) -> Iterator[Session]:
    if isinstance(workload, Workload):
        from advisor.session.local import LocalSession

        description = WorkloadDescription(
            target=workload.name,
            model=_name_of(workload.build_model),
            batch=_name_of(workload.make_batch),
            loss=_name_of(workload.compute_loss),
            optimizer=_name_of(workload.make_optimizer),
            variants=tuple(workload.variants),
        )
        with LocalSession(workload, description) as local:
            yield local
        return
    from advisor.session.child import ChildSession
    from advisor.workload.target import TargetSpec

    with ChildSession(TargetSpec(target=os.fspath(workload))) as child:
        yield child


def _name_of(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__name__', type(function).__name__)}()"


# Keywords of the Python API that read better without a unit than the fields of `Request` they set.
_KEYWORDS = {
    "device_memory": "device_memory_bytes",
    "micro_batch": "micro_batch_size",
    "global_batch": "global_batch_size",
    "deadline": "deadline_s",
    "budget": "budget_usd",
    "price": "price_usd_per_hour",
    "lr": "learning_rate",
}


def _shown(value: Any) -> str:
    return f"{len(value)} values" if isinstance(value, list | tuple) else str(value)


def _lengths(value: Any) -> SequenceLengths:
    """A share of a row, the path of a file, or the lengths themselves."""
    if isinstance(value, str | float | int | os.PathLike):
        return sequence_lengths.parse(str(value))
    return sequence_lengths.of_lengths(tuple(value), source="sequence_lengths")


def _request(settings: Mapping[str, Any]) -> Request:
    """Keywords to a request: names as on the command line, SI numbers or strings with units."""
    from advisor.units import parse_bytes, parse_count, parse_seconds, parse_usd, parse_usd_per_hour

    parsers: dict[str, Callable[[str], Any]] = {
        "device_memory_bytes": parse_bytes,
        "deadline_s": parse_seconds,
        "samples": parse_count,
        "tokens": parse_count,
        "steps": parse_count,
        "budget_usd": parse_usd,
        "price_usd_per_hour": parse_usd_per_hour,
    }
    options, _ = plugins()
    known = {f.name for f in fields(Request)} - {"settings", "choices"}
    values: dict[str, Any] = {}
    choices: dict[str, str] = {}
    for keyword, value in settings.items():
        name = _KEYWORDS.get(keyword, keyword)
        if keyword in options:
            choices[keyword] = str(value)
        elif name not in known:
            raise UsageError(
                f"no setting {keyword!r}", hint=f"known: {', '.join(sorted({*_KEYWORDS, *known, *options}))}"
            )
        elif name == "sequence_lengths" and value is not None:
            values[name] = _lengths(value)
        elif value is not None:
            values[name] = parsers[name](value) if isinstance(value, str) and name in parsers else value
    shown = tuple(
        Setting(name=name, value=_shown(value), origin="argument") for name, value in sorted(settings.items())
    )
    return Request(**values, choices=tuple(sorted(choices.items())), settings=shown)
