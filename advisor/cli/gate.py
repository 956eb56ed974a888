"""`advisor gate`: a policy over a stored report; the exit code is the answer. No torch, no user code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advisor.cli.report import Stored

if TYPE_CHECKING:
    from advisor.gate import GateResult, Policy

PolicyFile = Annotated[
    Path | None, typer.Option("--policy", metavar="FILE", help="a policy in TOML; the flags below win over it")
]
MaxDevices = Annotated[int | None, typer.Option("--max-devices", metavar="N", help="most devices the plan may take")]
MaxCost = Annotated[str | None, typer.Option("--max-cost", metavar="MONEY", help="most it may cost, as '500 USD'")]
MaxMemory = Annotated[
    float | None,
    typer.Option("--max-memory-fraction", metavar="X", help="most of usable memory it may require, as 0.9"),
]
Deadline = Annotated[str | None, typer.Option("--deadline", metavar="TIME", help="longest it may take, as 5d")]
SingleDevice = Annotated[bool, typer.Option("--fail-if-single-device", help="fail if one device is enough")]
Undetermined = Annotated[
    str | None,
    typer.Option(
        "--undetermined",
        metavar="fail|pass|unanswered",
        help="what a check counts as that can't be decided [unanswered]",
    ),
]


def gate(
    stored: Stored,
    policy: PolicyFile = None,
    max_devices: MaxDevices = None,
    max_cost: MaxCost = None,
    max_memory_fraction: MaxMemory = None,
    deadline: Deadline = None,
    fail_if_single_device: SingleDevice = False,
    undetermined: Undetermined = None,
) -> int:
    """Apply a policy to a stored report.

    Exits 0 if every check passes, 1 if one fails, 2 if the answer is not known.
    """
    from advisor.cli.stored import read
    from advisor.gate import evaluate

    flags = {
        "max_devices": max_devices,
        "max_cost": max_cost,
        "max_memory_fraction": max_memory_fraction,
        "deadline": deadline,
        "fail_if_single_device": fail_if_single_device or None,
        "undetermined": undetermined,
    }
    asked = _policy(policy, {name: value for name, value in flags.items() if value is not None})
    result = evaluate(read(stored), asked)
    print_checks(result)
    return result.exit_code


def _policy(path: Path | None, flags: dict[str, object]) -> Policy:
    """The file's keys with the flags over them, each checked under its own name first."""
    from advisor.gate import FLAGS, parse_policy, read_policy

    values = {} if path is None else read_policy(path)
    parse_policy(values, name=str(path))
    parse_policy(flags, name=FLAGS)
    return parse_policy(values | flags)


def print_checks(result: GateResult, *, to_stderr: bool = False) -> None:
    """One line for each check, then the answer."""
    from advisor.cli.output import emit
    from advisor.report.blocks import clean

    words = {True: "pass", False: "FAIL", None: "unanswered"}
    lines = [f"{words[check.passed]:<10}  {check.name:<21}  {clean(check.sentence)}" for check in result.checks]
    lines.append({True: "The gate passes.", False: "The gate fails.", None: "The gate has no answer."}[result.passed])
    emit("\n".join(lines) + "\n", stream=sys.stderr if to_stderr else None)
