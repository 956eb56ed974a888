"""Import the user's file as their own Python would. No torch at import."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import shlex
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from advisor.errors import WorkloadError
from advisor.workload.failures import Origin, origin, place, shown, user_code

_ROOT_MARKERS = (".git", "pyproject.toml", "setup.py", "setup.cfg")
_INSTALLERS = frozenset({"pip", "pip3", "uv", "conda", "mamba", "poetry", "easy_install"})


def import_file(path: Path) -> ModuleType:
    """The module of a file: by its dotted name where it sits in a package or imports relatively, else by its stem."""
    path = path.resolve()
    tree = _syntax(path)
    root = repository_root(path)
    relative = any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree))
    in_package = (path.parent / "__init__.py").is_file()
    top = _package_top(path) if in_package or not relative else root
    if relative and top == path.parent:
        top = path.parent.parent  # a relative import needs at least one parent package
    with _as_script(path, root=root, package_top=top if in_package or relative else None):
        if not (in_package or relative):
            return _import_by_path(path)
        dotted = ".".join(path.relative_to(top).with_suffix("").parts)
        try:
            return importlib.import_module(dotted.removesuffix(".__init__"))
        except (Exception, SystemExit) as error:
            reached = any(Path(f.filename) == path for f in traceback.extract_tb(error.__traceback__))
            if reached or relative:
                raise
            return _import_by_path(path)  # it is the package's __init__ that fails; the file may do without it


def import_module(dotted: str) -> ModuleType:
    """The module of a dotted name, found from the current folder as `python -m` would."""
    with _as_script(Path.cwd() / dotted, root=Path.cwd(), package_top=Path.cwd()):
        return importlib.import_module(dotted)


def repository_root(path: Path) -> Path:
    """The folder of the repository the file belongs to; without any sign of one, where its packages begin."""
    for marker in _ROOT_MARKERS:
        for folder in path.parents:
            if (folder / marker).exists():
                return folder
    return _package_top(path)


def _package_top(path: Path) -> Path:
    folder = path.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _syntax(path: Path) -> ast.Module:
    with user_code(f"reading {shown(path)}"):
        try:
            return ast.parse(path.read_bytes(), str(path))
        except ValueError as error:  # null bytes, an encoding it does not have
            raise WorkloadError(f"{shown(path)} is not a Python file: {error}") from None


def _import_by_path(path: Path) -> ModuleType:
    # Siblings import it by its stem; but a stem that Python already gave away (random.py) keeps its owner.
    name = path.stem if path.stem not in sys.modules else f"{path.stem}__advisor_target"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


@contextmanager
def _as_script(path: Path, *, root: Path, package_top: Path | None) -> Iterator[None]:
    """`sys.argv` and `sys.path` as the file expects them; what fails is told with the user's line.

    `sys.path` stays: models import lazily while they are built and called.
    """
    parents = [folder for folder in path.parents if folder.is_relative_to(root)]
    wanted = list(dict.fromkeys(str(folder) for folder in (*([package_top] if package_top else []), *parents)))
    sys.path[:] = wanted + [entry for entry in sys.path if entry not in wanted]
    argv, sys.argv = sys.argv, [str(path)]
    name = shown(path)
    try:
        with _no_installs() as refused, user_code(f"importing {name}", all_theirs=True):
            yield
    except WorkloadError as error:
        if refused and refused[0] not in error.message:
            raise WorkloadError(f"{error.message}\n{refused[0]}", hint=error.hint) from error
        raise
    finally:
        sys.argv = argv


@contextmanager
def _no_installs() -> Iterator[list[str]]:
    """Refuse to install packages while a file is imported; yields what was refused.

    Some files run `pip install` at import: that would change the user's environment behind their back.
    """
    refused: list[str] = []
    start, system = subprocess.Popen.__init__, os.system

    def check(command: Any) -> None:
        if _installs(command):
            text = command if isinstance(command, str) else shlex.join(map(str, command))
            refused.append(f"refused to run `{text}`, asked for at {_asking_line()}")
            raise WorkloadError(refused[0], hint="install what the file needs yourself, then run again")

    def guarded_start(self: Any, args: Any, *rest: Any, **options: Any) -> None:
        check(args)
        start(self, args, *rest, **options)

    def guarded_system(command: Any) -> int:
        check(command)
        return system(command)

    subprocess.Popen.__init__, os.system = guarded_start, guarded_system  # type: ignore[method-assign]
    try:
        yield refused
    finally:
        subprocess.Popen.__init__, os.system = start, system  # type: ignore[method-assign]


def _installs(command: str | bytes | Sequence[Any] | Any) -> bool:
    if isinstance(command, (str, bytes)):
        words = os.fsdecode(command).split()
    elif isinstance(command, Sequence):
        words = [os.fsdecode(word) if isinstance(word, (str, bytes, Path)) else str(word) for word in command]
        words = [part for word in words for part in word.split()]
    else:
        return False
    return "install" in words and any(Path(word).name in _INSTALLERS for word in words)


def _asking_line() -> str:
    for frame in reversed(traceback.extract_stack()):
        if origin(frame.filename) is Origin.USER:
            return place(frame.filename, frame.lineno or 0, frame.line)
    return "import"
