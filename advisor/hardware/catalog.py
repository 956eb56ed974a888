"""Finds hardware profiles by name or path and loads them.

Order: a path the user gave; the user's own folders (`ADVISOR_PROFILES`, `advisor-profiles/` where the command runs,
`~/.config/advisor/profiles`); the profiles shipped. Each folder holds `devices/`, `clusters/` and `collectives/`.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from advisor.errors import ProfileError
from advisor.hardware.profile import ClusterProfile, DeviceProfile
from advisor.hardware.schema import ClusterFile, DeviceFile, UnsupportedEntry, UnsupportedFile, kind_of, read

_ENVIRONMENT = "ADVISOR_PROFILES"
_MOST_NAMES = 8  # in a hint; `advisor profiles list` has them all


def device(name_or_path: str | Path) -> DeviceProfile:
    """The device called `name_or_path` (case, spaces and underscores don't matter), or described in that file."""
    path = _find(name_or_path, "devices")
    return read(path, DeviceFile).profile(path.stem)


def cluster(name_or_path: str | Path) -> ClusterProfile:
    """The cluster called `name_or_path` (case, spaces and underscores don't matter), or described in that file."""
    path = _find(name_or_path, "clusters")
    return read(path, ClusterFile).profile(path.stem)


def device_names() -> tuple[str, ...]:
    """Names of the devices `device` knows, in alphabetical order."""
    return tuple(sorted(path.stem for path in profile_files("devices")))


def cluster_names() -> tuple[str, ...]:
    """Names of the clusters `cluster` knows, in alphabetical order."""
    return tuple(sorted(path.stem for path in profile_files("clusters")))


def is_cluster(name: str) -> bool:
    """Whether a cluster has this name (and no device)."""
    wanted = _normal(name)
    return wanted in map(_normal, cluster_names()) and wanted not in map(_normal, device_names())


def profile_files(kind: str) -> Iterator[Path]:
    """Files of one kind (`devices`, `clusters`, `collectives`), one per name: the user's own win."""
    seen: set[str] = set()
    for folder in profile_folders():
        for path in sorted((folder / kind).glob("*.toml")):
            if (name := _normal(path.stem)) not in seen:
                seen.add(name)
                yield path


def profile_folders() -> Iterator[Path]:
    """The folders searched, in order."""
    if given := os.environ.get(_ENVIRONMENT):
        if not Path(given).is_dir():
            raise ProfileError(
                f"{_ENVIRONMENT} is {given!r}, which is no folder", hint=f"correct or unset {_ENVIRONMENT}"
            )
        yield Path(given)
    yield Path("advisor-profiles")
    with contextlib.suppress(RuntimeError):  # an account without a home folder has no profiles of its own
        yield Path.home() / ".config" / "advisor" / "profiles"
    yield _shipped()


def check(path: str | Path) -> None:
    """Raises `ProfileError` with every fault of the profile at `path`."""
    path = Path(path)
    file = read(path, kind_of(path))
    if isinstance(file, ClusterFile):
        device(file.device)  # says so if nobody described it


def _shipped() -> Path:
    packed = Path(__file__).parents[1] / "_profiles"  # in the wheel
    return packed if packed.is_dir() else Path(__file__).parents[2] / "profiles"  # beside the source


def _find(name_or_path: str | Path, kind: str) -> Path:
    text = str(name_or_path).strip()
    if text.endswith(".toml") or len(Path(text).parts) > 1:
        if not Path(text).is_file():
            raise ProfileError(f"no profile at {text}", hint="give a TOML file or a name of `advisor profiles list`")
        return Path(text)
    files = {_normal(path.stem): path for path in profile_files(kind)}
    wanted = _normal(text)
    if wanted in files:
        return files[wanted]
    if (entry := _unsupported(wanted)) is not None:
        raise ProfileError(
            f"{entry.title} is known, but can't be planned for: {entry.reason}",
            hint="describe it in a profile of your own (profiles/README.md has the rules)",
        )
    raise ProfileError(f"unknown {kind.removesuffix('s')} {text!r}", hint=_suggestion(wanted, sorted(files), kind))


def _normal(name: str) -> str:
    return re.sub(r"[\s_.]+", "-", name.strip().lower())


def _unsupported(name: str) -> UnsupportedEntry | None:
    path = _shipped() / "unsupported.toml"
    return read(path, UnsupportedFile).devices.get(name)


def _suggestion(wanted: str, names: list[str], kind: str) -> str:
    holding = [name for name in names if wanted and wanted in name]
    close = holding or difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    listing = "`advisor profiles list` shows all; a TOML file of your own works too"
    if not close:
        return listing
    quoted = [repr(name) for name in close[:_MOST_NAMES]]
    return f"did you mean {' or '.join([', '.join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)}? {listing}"
