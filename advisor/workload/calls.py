"""Where the user's repository builds a class: what to suggest when its constructor needs arguments. No torch."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

from advisor.workload.failures import shown

_SKIPPED_FOLDERS = frozenset({"node_modules", "site-packages", "venv", "env", "build", "dist", "__pycache__"})
# Bounds, so that an error message never takes seconds: large repositories hold a few hundred source files.
_MAX_FILES = 1000
_MAX_FILE_BYTES = 500_000
_MAX_SHOWN = 5
_MAX_WIDTH = 110


def find_calls(name: str, root: Path) -> list[str]:
    """`train.py:45: UNet(n_channels=3, n_classes=args.classes)`, those with literals alone first."""
    found: list[tuple[bool, str]] = []
    for path in python_files(root):
        for call in _calls_in(path, name):
            arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
            text = ast.unparse(call)
            text = text if len(text) <= _MAX_WIDTH else text[: _MAX_WIDTH - 3] + "..."
            found.append((not all(map(_is_literal, arguments)), f"{shown(path)}:{call.lineno}: {text}"))
    found.sort(key=lambda entry: entry[0])
    return [text for _, text in found[:_MAX_SHOWN]]


def _calls_in(path: Path, name: str) -> Iterator[ast.Call]:
    try:
        source = path.read_text(encoding="utf-8", errors="replace")
        tree = ast.parse(source) if f"{name}(" in source else None
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Call) and (node.args or node.keywords):
            callee = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            if callee == name:
                yield node


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def python_files(root: Path) -> Iterator[Path]:
    count = 0
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(s for s in subfolders if s not in _SKIPPED_FOLDERS and not s.startswith("."))
        for file in sorted(files):
            path = Path(folder, file)
            if path.suffix != ".py" or path.stat().st_size > _MAX_FILE_BYTES:
                continue
            count += 1
            if count > _MAX_FILES:
                return
            yield path
