"""Exceptions out of the user's code, told as the user's code: our frames dropped, theirs named. No torch.

Nothing here is caught deep inside a trace (the tracer needs the original exception to try another way); `user_code`
stands around whole requests.
"""

from __future__ import annotations

import importlib.util
import linecache
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

from advisor.errors import AdvisorError, WorkloadError

_OURS = str(Path(__file__).parents[1])
_STDLIB = sysconfig.get_paths()["stdlib"]
_PACKAGES = re.compile(r"[/\\](?:site|dist)-packages[/\\](?P<package>\w+)")
# What a C++ operator raises leaves no frame of its own, so it surfaces in the frame of our dispatch mode that called
# it. These types are not among those: raised in a frame of ours they are bugs of ours.
_NEVER_FROM_OPERATORS = (AssertionError, AttributeError, LookupError, NameError)
# The function that runs a model: one made of torch's own modules has no frame of the user's.
_RUNS_MODEL = "call_model"
# Import names that are not the name `pip` wants (from the packages' own installation pages).
_DISTRIBUTIONS = {
    "cv2": "opencv-python",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "yaml": "pyyaml",
    "torch_geometric": "torch-geometric",
    "pytorch_lightning": "pytorch-lightning",
    "pkg_resources": "setuptools",
    "dotenv": "python-dotenv",
}


class Origin(Enum):
    """Whose code a file is."""

    USER = "user"
    OURS = "ours"
    PACKAGE = "package"  # an installed package other than torch
    PLATFORM = "platform"  # torch and Python itself


def origin(filename: str) -> Origin:
    if filename.startswith("<"):
        return Origin.USER if filename.startswith("<--") else Origin.PLATFORM
    if filename.startswith(_OURS):
        return Origin.OURS
    if match := _PACKAGES.search(filename):
        return Origin.PLATFORM if match["package"] == "torch" else Origin.PACKAGE
    return Origin.PLATFORM if filename.startswith(_STDLIB) else Origin.USER


@contextmanager
def user_code(doing: str, *, hint: str | None = None, all_theirs: bool = False) -> Iterator[None]:
    """Turn what the user's code raises into a `WorkloadError`; let our own errors and bugs through.

    `all_theirs`: nothing of ours runs inside, so that even an exception without a frame of theirs is theirs.
    """
    try:
        yield
    except AdvisorError:
        raise
    except (Exception, SystemExit) as error:
        if not all_theirs and is_our_bug(error):
            raise
        raise workload_error(error, doing=doing, hint=hint) from error


def is_our_bug(error: BaseException) -> bool:
    """Whether no frame of the user, or of a package they use, had a part in it."""
    frames = traceback.extract_tb(error.__traceback__)
    origins = [origin(frame.filename) for frame in frames]
    if isinstance(error, _NEVER_FROM_OPERATORS) and origins and origins[-1] is Origin.OURS:
        return True
    if isinstance(error, SyntaxError | SystemExit) or any(frame.name == _RUNS_MODEL for frame in frames):
        return False
    return Origin.USER not in origins and Origin.PACKAGE not in origins


def workload_error(error: BaseException, *, doing: str, hint: str | None = None) -> WorkloadError:
    """`doing`: what was under way, as in "importing model.py". Notes on the exception become the hint."""
    place = where(error)
    message = f"{doing} failed{f' at {place}' if place else ''}: {describe(error)}"
    notes = "\n".join(getattr(error, "__notes__", ()))
    if isinstance(error, SystemExit):
        notes = "put what trains, parses arguments or exits under `if __name__ == '__main__':`"
    if isinstance(error, SyntaxError):
        notes = _pointed_at(error) or notes
    return WorkloadError(message, hint=_missing_package_hint(error) or notes or hint)


def _pointed_at(error: SyntaxError) -> str | None:
    """Python's own mark under the character that it could not read."""
    if not error.text or not error.offset or not error.lineno:
        return None
    line = error.text.rstrip("\n").expandtabs(1)
    code = line.lstrip()
    mark = " " * (error.offset - 1 - (len(line) - len(code))) + "^"
    return f"correct line {error.lineno}; Python stops reading at the mark:\n    {code}\n    {mark}"


def describe(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error.code!r})"
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def where(error: BaseException) -> str | None:
    """`file:line (source)` of the innermost frame of the user's code, else of the package they called."""
    if isinstance(error, SyntaxError) and error.filename:
        return place(error.filename, error.lineno or 0, error.text)
    frames = traceback.extract_tb(error.__traceback__)
    for wanted in (Origin.USER, Origin.PACKAGE):
        for frame in reversed(frames):
            if origin(frame.filename) is wanted:
                return place(frame.filename, frame.lineno or 0, frame.line)
    return None


def place(filename: str, line: int, source: str | None = None) -> str:
    source = (source or linecache.getline(filename, line)).strip()
    if filename.startswith("<"):
        return filename.strip("<>") + (f" `{source}`" if source else "")
    return f"{shown(Path(filename))}:{line}" + (f" ({source})" if source else "")


def shown(path: Path) -> str:
    """The path as the user would type it from here."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _missing_package_hint(error: BaseException) -> str | None:
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    package = error.name.partition(".")[0]
    if package in sys.modules or importlib.util.find_spec(package):  # it is there; a module inside it is not
        return None
    return f"pip install {_DISTRIBUTIONS.get(package, package)}"
