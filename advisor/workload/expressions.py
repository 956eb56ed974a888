"""Expressions given as flags, evaluated in the namespace of the user's file. No torch at import."""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import linecache
import math
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType, SimpleNamespace
from typing import Any

from advisor.errors import WorkloadError

_GIVEN = ("torch", "nn", "F", "np", "math", "json", "NS", "imp")


def namespace(names: Mapping[str, object]) -> dict[str, Any]:
    """The file's own names, over `torch`, `nn`, `F`, `np`, `math`, `json`, `NS` and `imp`."""
    import torch

    given: dict[str, Any] = {
        "torch": torch,
        "nn": torch.nn,
        "F": torch.nn.functional,
        "math": math,
        "json": json,
        "NS": SimpleNamespace,
        "imp": importlib.import_module,
    }
    with contextlib.suppress(ImportError):  # torch works without it; an expression that names np then fails by itself
        given["np"] = importlib.import_module("numpy")
    return given | dict(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A compiled flag value. Failures inside it show up as a frame of the file `<--flag>`."""

    flag: str
    text: str
    code: CodeType
    names: frozenset[str]  # every name it mentions
    scope: Mapping[str, Any]

    def __call__(self, **bound: object) -> Any:
        # One dictionary for both, so that lambdas and comprehensions see the bound names too.
        try:
            return eval(self.code, {**self.scope, **bound})
        except NameError as error:
            frames = traceback.extract_tb(error.__traceback__)
            if frames[-1].filename == self.code.co_filename:  # not one of a function that the expression calls
                names = ", ".join([*bound, *_GIVEN])
                error.add_note(f"{self.flag} is evaluated in the file's own namespace, plus {names}")
            raise


def parse(text: str, *, flag: str, scope: Mapping[str, Any]) -> Expression:
    filename = f"<{flag}>"
    try:
        tree = ast.parse(text.strip(), filename, mode="eval")
    except SyntaxError as error:
        hint = "for more than an expression, write a builder file: --model build.py:make" if flag == "--model" else None
        raise WorkloadError(f"{flag} {text!r} is not a Python expression: {error.msg}", hint=hint) from None
    names = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    # So that tracebacks, and our messages, can show the expression as the source line.
    linecache.cache[filename] = (len(text), None, [line + "\n" for line in text.strip().splitlines()], filename)
    return Expression(flag=flag, text=text, code=compile(tree, filename, "eval"), names=names, scope=scope)


def dotted_name(text: str) -> bool:
    """Whether `text` only names something: `Net`, `models.Net`."""
    return all(part.isidentifier() for part in text.strip().split("."))
