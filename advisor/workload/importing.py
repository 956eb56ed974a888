"""Import the user's file as their own Python would. No torch at import."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from advisor.errors import WorkloadError
from advisor.workload.failures import shown, user_code
from advisor.workload.guard import guarded
from advisor.workload.statements import Skipping

_ROOT_MARKERS = (".git", "pyproject.toml", "setup.py", "setup.cfg")


def import_file(path: Path, *, skipping: Skipping | None = None) -> ModuleType:
    """The module of a file: by its dotted name where it sits in a package or imports relatively, else by its stem.

    `skipping`: leave out top-level statements of the file that fail, and those that train.
    """
    path = path.resolve()
    tree = _syntax(path)
    root = repository_root(path)
    relative = any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree))
    in_package = (path.parent / "__init__.py").is_file()
    top = _package_top(path) if in_package or not relative else root
    if relative and top == path.parent:
        top = path.parent.parent  # a relative import needs at least one parent package
    package_top = top if in_package or relative else None
    with _skip_hint(skipping), _as_script(path, root=root, package_top=package_top):
        if not (in_package or relative):
            return _import_by_path(path, skipping)
        dotted = ".".join(path.relative_to(top).with_suffix("").parts)
        try:
            if skipping is not None:
                return _import_by_path(path, skipping, name=dotted)
            return importlib.import_module(dotted.removesuffix(".__init__"))
        except (Exception, SystemExit) as error:
            reached = any(Path(f.filename) == path for f in traceback.extract_tb(error.__traceback__))
            if reached or relative:
                raise
            return _import_by_path(
                path, skipping
            )  # it is the package's __init__ that fails; the file may do without it


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


def _import_by_path(path: Path, skipping: Skipping | None, *, name: str | None = None) -> ModuleType:
    if name is None:
        # Siblings import it by its stem; but a stem that Python already gave away (random.py) keeps its owner.
        name = path.stem if path.stem not in sys.modules else f"{path.stem}__advisor_target"
    elif parent := name.rpartition(".")[0]:
        importlib.import_module(parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        if skipping is None:
            spec.loader.exec_module(module)
        else:
            skipping.run(_syntax(path), module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


@contextmanager
def _skip_hint(skipping: Skipping | None) -> Iterator[None]:
    try:
        yield
    except WorkloadError as error:
        if skipping is not None:
            raise
        hint = (
            f"{error.hint}\nor leave out what fails or trains: " if error.hint else "leave out what fails or trains: "
        )
        raise WorkloadError(error.message, hint=f"{hint}--skip-failing-statements") from error.__cause__


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
        with guarded(), user_code(f"importing {name}", all_theirs=True):
            yield
    finally:
        sys.argv = argv
