"""A session in a guarded child process: the user's code can hang, crash, exit or exhaust memory there, and not here."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any, Self

from advisor.errors import UsageError, WorkloadError
from advisor.measure.result import Measurement, Outcome
from advisor.options.base import Recipe
from advisor.session import messages
from advisor.session.process import Cause, ChildProcess, Death
from advisor.trace.records import StepTrace, TraceTarget
from advisor.workload.spec import WorkloadDescription
from advisor.workload.target import Limits, TargetSpec, parse_target

_OUTPUT_SHOWN = 5  # lines the user's code printed last, under an error
# Importing torch takes 2 s on an idle machine and has taken 11 s on a busy one.
_START_LIMIT_S = 120.0
# The oldest torch whose traces were compared with runs.
MINIMUM_TORCH = (2, 11)
_NEEDS = "an interpreter of Python 3.11 or newer with torch 2.11 or newer serves, as in --python .venv/bin/python"

_OUTCOMES = {
    Cause.TIME_LIMIT: Outcome.TIMED_OUT,
    Cause.MEMORY_LIMIT: Outcome.OUT_OF_MEMORY,
    Cause.KILLED: Outcome.OUT_OF_MEMORY,
    Cause.DIED: Outcome.CRASHED,
}
_HINTS = {
    Cause.TIME_LIMIT: "put what trains, downloads or waits under `if __name__ == '__main__':`, leave it out with "
    "--skip-failing-statements, or raise the time limit with --time-limit",
    Cause.MEMORY_LIMIT: "data sets and trained weights are not needed: load them under `if __name__ == '__main__':`",
    Cause.KILLED: "run it where more memory is free",
    Cause.DIED: "run the file with python itself to see what ends it",
}


class ChildSession:
    """Loads `spec` in a child process, as `advisor.session.base.Session` says.

    Args:
        spec: what the user said.
        limits: instead of those in `spec`.

    Raises:
        WorkloadError: the file can't be loaded within the limits.
    """

    def __init__(self, spec: TargetSpec, *, limits: Limits | None = None) -> None:
        self._spec = spec
        self._limits = limits or spec.limits
        self._traces: dict[tuple[Recipe, TraceTarget], StepTrace] = {}
        parse_target(spec.target)  # a misspelt name need not wait for torch
        self._child, self._description = self._loaded_child()

    @property
    def description(self) -> WorkloadDescription:
        return self._description

    def trace(self, recipe: Recipe, target: TraceTarget) -> StepTrace:
        if (recipe, target) not in self._traces:
            if self._child.closed:  # the last trace was its end; another recipe may do
                self._child, _ = self._loaded_child()
            request = messages.Trace(recipe=recipe, target=target)
            traced: messages.Traced = self._ask(self._child, request, doing="tracing one step")
            self._traces[recipe, target] = traced.trace
            self._description = traced.description
        return self._traces[recipe, target]

    def measure(self, recipe: Recipe, *, time_limit_s: float) -> Measurement:
        """In a child of its own: what runs out of memory there takes nothing else with it."""
        child, _ = self._loaded_child()
        try:
            request = messages.Measure(recipe=recipe, time_limit_s=time_limit_s)
            # The stopwatch keeps its own limit between steps; ours ends a build or a step that never returns.
            answer = child.ask(request, time_limit_s=time_limit_s + self._limits.time_s)
        finally:
            child.close()
        if isinstance(answer, Death):
            where = f" at {answer.where}" if answer.where else ""
            return Measurement(outcome=_OUTCOMES[answer.cause], reason=f"the step {answer.reason}{where}")
        measurement: Measurement = _result(answer)
        return measurement

    def close(self) -> None:
        self._child.close()
        self._traces.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _loaded_child(self) -> tuple[ChildProcess, WorkloadDescription]:
        python = self._spec.python
        child = ChildProcess(memory_limit_bytes=self._limits.memory_bytes, python=interpreter(python))
        try:
            started = child.ask(messages.Start(), time_limit_s=_START_LIMIT_S)
            if isinstance(started, Death | messages.Crashed) and python is not None:
                output = started.output if isinstance(started, Death) else started.traceback
                raise WorkloadError(
                    f"{python} can't run advisor: {(output.splitlines() or ['it ended'])[-1]}", hint=_NEEDS
                )
            if isinstance(started, Death):
                raise RuntimeError(f"the child process {started.reason} before it was ready:\n{started.output}")
            _check_torch(_result(started).torch, python)
            return child, self._ask(child, messages.Load(spec=self._spec), doing=f"loading {self._spec.target}")
        except BaseException:
            child.close()
            raise

    def _ask(self, child: ChildProcess, request: object, *, doing: str) -> Any:
        answer = child.ask(request, time_limit_s=self._limits.time_s)
        if not isinstance(answer, Death):
            return _result(answer)
        where = f" at {answer.where}" if answer.where else ""
        lines = answer.output.splitlines()[-_OUTPUT_SHOWN:] if answer.cause is Cause.DIED and not where else []
        printed = "".join(f"\n  {line}" for line in lines)
        raise WorkloadError(
            f"{doing}: your code {answer.reason}{where}{f', after printing{printed}' if printed else ''}",
            hint=_HINTS[answer.cause],
        )


def interpreter(python: str | None) -> str:
    """The path of the interpreter that `--python` names: a file, or a command that the shell would find."""
    if python is None:
        return sys.executable
    found = shutil.which(python)
    if found is None:
        raise UsageError(f"--python {python}: no such program", hint="a virtual environment has one: .venv/bin/python")
    return os.path.abspath(found)  # not resolved: the link is what makes it the environment's  # noqa: PTH100


def _check_torch(version: str | None, python: str | None) -> None:
    name = python or sys.executable
    if version is None:
        raise WorkloadError(f"{name} has no torch", hint="pip install torch; or name another interpreter with --python")
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if numbers < MINIMUM_TORCH:
        raise WorkloadError(f"{name} has torch {version}", hint=_NEEDS)


def _result(answer: Any) -> Any:
    if isinstance(answer, messages.Failed):
        raise answer.error
    if isinstance(answer, messages.Crashed):
        raise RuntimeError(f"advisor failed in the child process:\n{answer.traceback}")
    return answer
