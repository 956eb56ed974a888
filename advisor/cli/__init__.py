"""The command line: one file for each command. `main` is the only place that turns an exception into an exit code.

Commands return their exit code. They import what they need when they are called, so that `advisor --help` and the
commands on stored reports start without torch.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from advisor.errors import AdvisorError

BUG, INTERRUPTED = 101, 130

# Allocations between two collections, as mypy raises it: at Python's own 700, a command of half a second spends a
# sixth of it looking for garbage among modules that only grow.
_ALLOCATIONS_PER_COLLECTION = 100_000

COMMANDS = ("assess", "estimate", "measure", "gate", "report", "profiles", "init")  # as `--help` lists them


def _version(asked: bool) -> None:
    if asked:
        from advisor import __version__

        typer.echo(f"advisor {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def _app(first: str | None) -> typer.Typer:
    """All commands; that one alone which the first argument names, since each takes milliseconds to set up."""
    app = typer.Typer(
        name="advisor",
        help="Does this PyTorch training job need a cluster, and if so, which setup?",
        rich_markup_mode=None,  # plain help: the same in a pipe, and no rich to import
        pretty_exceptions_enable=False,
        no_args_is_help=True,
    )
    app.callback()(_options)
    for name in (first,) if first in COMMANDS else COMMANDS:
        module = import_module(f"advisor.cli.{name}")
        if name == "profiles":  # it has commands of its own
            app.add_typer(module.app, name=name)
        else:
            app.command()(getattr(module, name))
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 gate failed, 2 not answered, 101 our bug, 130 interrupted."""
    gc.set_threshold(_ALLOCATIONS_PER_COLLECTION)
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    try:
        first = next(iter(sys.argv[1:] if arguments is None else arguments), None)
        result = typer.main.get_command(_app(first)).main(args=arguments, prog_name="advisor", standalone_mode=False)
    except AdvisorError as error:
        _complain(error.message, error.hint)
        return error.exit_code
    except typer.TyperException as error:  # a flag or argument typer refuses
        message = error.format_message()
        if message.startswith("Usage:"):  # a command without arguments
            typer.echo(message, err=True)
        else:
            _complain(message, "advisor --help lists the commands, advisor COMMAND --help its flags")
        return AdvisorError.exit_code
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted", None)
        return INTERRUPTED
    except SystemExit:  # the reader of our output went away: typer and rich leave by this door
        return 0
    except Exception:
        traceback.print_exc()
        _complain("this is a bug in advisor", "please report it with the lines above")
        return BUG
    if result == INTERRUPTED:  # typer turns an interrupt of a command into its code
        _complain("interrupted", None)
    return result if isinstance(result, int) else 0


def _complain(message: str, hint: str | None) -> None:
    """To standard error. A message may quote a file or a report: nothing in it may steer the terminal."""
    from advisor.report.blocks import inert

    lines = [f"error: {message}", *([f"hint: {hint}"] if hint else [])]
    sys.stderr.write("\n".join(inert(line) for text in lines for line in text.splitlines()) + "\n")
