"""A script run statement by statement, without those that train or fail: `--skip-failing-statements`. No torch.

For files that can't be imported as they are: they train, parse arguments or read data on their top level. What is left
out is remembered, and the report says so.
"""

from __future__ import annotations
import __future__

import ast
from dataclasses import dataclass, field
from types import ModuleType

from advisor.workload.failures import describe

# Calls for their own sake that later statements rely on; any other bare call may train for hours.
_CONFIGURING = frozenset(
    "add_argument add_argument_group add_mutually_exclusive_group add_subparsers add_parser set_defaults append extend "
    "insert update setdefault manual_seed seed set_default_dtype filterwarnings simplefilter".split()
)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(slots=True)
class Skipping:
    """Runs modules and keeps what it left out: `140-178 (a loop)`, `100 (RuntimeError: Error downloading)`."""

    skipped: list[str] = field(default_factory=list)

    def run(self, tree: ast.Module, module: ModuleType) -> None:
        flags = _future_flags(tree)
        for statement in tree.body:
            if reason := _trains(statement):
                self._skip(statement, reason)
                continue
            body = ast.Module(body=[statement], type_ignores=[])
            code = compile(body, str(module.__file__), "exec", flags=flags, dont_inherit=True)
            try:
                exec(code, vars(module))
            except (Exception, SystemExit) as error:
                self._skip(statement, describe(error).splitlines()[0])

    def _skip(self, statement: ast.stmt, reason: str) -> None:
        last = statement.end_lineno or statement.lineno
        lines = str(statement.lineno) if last == statement.lineno else f"{statement.lineno}-{last}"
        self.skipped.append(f"{lines} ({reason})")


def _future_flags(tree: ast.Module) -> int:
    """What `from __future__ import annotations` at the top of a file means for each of its statements."""
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    flags = 0
    for alias in (alias for node in imports for alias in node.names):
        flags |= getattr(__future__, alias.name).compiler_flag
    return flags


def _trains(statement: ast.stmt) -> str | None:
    """Why a statement is left out unrun: it may train."""
    if isinstance(statement, _LOOPS):
        return "a loop"
    if isinstance(statement, ast.Expr) and isinstance(call := statement.value, ast.Call):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        return None if name in _CONFIGURING else f"the call {name}(...)"
    return None
