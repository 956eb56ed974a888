"""What the user's code may not do while it is imported and built: install, download, wait for the network. No torch.

Some files run `pip install` at import, many fetch data sets or trained weights. The first would change the user's
environment behind their back; the second takes minutes for values that change no shape, and none are needed here.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from advisor.errors import WorkloadError
from advisor.workload.failures import Origin, origin, place

_INSTALLERS = frozenset({"pip", "pip3", "uv", "conda", "mamba", "poetry", "easy_install"})
_DOWNLOADERS = frozenset({"wget", "curl", "aria2c", "gdown", "huggingface-cli", "hf", "kaggle"})
_LOCAL = ("localhost", "127.", "::1")
_NOT_NEEDED = "data sets and trained weights are not needed: load them under `if __name__ == '__main__':`"


class RefusedConnectionError(ConnectionRefusedError):
    """What a library sees when it reaches for the network: many then fall back on what they have."""


@contextmanager
def guarded() -> Iterator[None]:
    """Refuse installs and downloads; where the file then fails, say what was refused and whose line asked for it."""
    refused: list[str] = []
    with ExitStack() as stack:
        stack.enter_context(_no_commands(refused))
        stack.enter_context(_no_connections(refused))
        stack.enter_context(_no_weights())
        try:
            yield
        except WorkloadError as error:
            if not refused or refused[0] in error.message:
                raise
            raise WorkloadError(f"{error.message}\n{refused[0]}", hint=error.hint or _NOT_NEEDED) from error
        except Exception as error:
            if refused:
                error.add_note(f"{refused[0]}; {_NOT_NEEDED}")
            raise


@contextmanager
def replaced(*replacements: tuple[Any, str, Any]) -> Iterator[None]:
    """Attributes of modules and classes, put back as they were: an inherited one is inherited again."""
    before = [(holder, name, vars(holder).get(name)) for holder, name, _ in replacements]
    for holder, name, value in replacements:
        setattr(holder, name, value)
    try:
        yield
    finally:
        for holder, name, value in before:
            if value is None:
                delattr(holder, name)
            else:
                setattr(holder, name, value)


# ---- commands -------------------------------------------------------------------------------------------------------


@contextmanager
def _no_commands(refused: list[str]) -> Iterator[None]:
    start, system = subprocess.Popen.__init__, os.system

    def check(command: Any) -> None:
        words = _words(command)
        if not (_installs(words) or _downloads(words)):
            return
        text = command if isinstance(command, str) else shlex.join(map(str, command))
        refused.append(f"refused to run `{text}`, asked for at {_asking_line()}")
        hint = "install what the file needs yourself, then run again" if _installs(words) else _NOT_NEEDED
        raise WorkloadError(refused[-1], hint=hint)

    def guarded_start(self: Any, args: Any, *rest: Any, **options: Any) -> None:
        check(args)
        start(self, args, *rest, **options)

    def guarded_system(command: Any) -> int:
        check(command)
        return system(command)

    with replaced((subprocess.Popen, "__init__", guarded_start), (os, "system", guarded_system)):
        yield


def _words(command: str | bytes | Sequence[Any] | Any) -> list[str]:
    if isinstance(command, (str, bytes)):
        return os.fsdecode(command).split()
    if isinstance(command, Sequence):
        words = [os.fsdecode(word) if isinstance(word, (str, bytes, Path)) else str(word) for word in command]
        return [part for word in words for part in word.split()]
    return []


def _installs(words: Sequence[str]) -> bool:
    return "install" in words and any(Path(word).name in _INSTALLERS for word in words)


def _downloads(words: Sequence[str]) -> bool:
    if not words:
        return False
    program = Path(words[0]).name
    return program in _DOWNLOADERS or (program == "git" and "clone" in words)


# ---- the network ----------------------------------------------------------------------------------------------------


@contextmanager
def _no_connections(refused: list[str]) -> Iterator[None]:
    look_up = socket.getaddrinfo

    def refuse(host: object) -> None:
        refused.append(f"refused to connect to {host}, asked for at {_asking_line()}")
        raise RefusedConnectionError(refused[-1])

    def guarded_look_up(host: Any, *rest: Any, **options: Any) -> Any:
        if not _is_local(host):
            refuse(host)
        return look_up(host, *rest, **options)

    def guarded(name: str) -> Callable[..., Any]:
        def connect(self: socket.socket, address: Any) -> Any:
            if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_local(address[0]):
                refuse(address[0])
            return getattr(super(socket.socket, self), name)(address)

        return connect

    with replaced(
        (socket, "getaddrinfo", guarded_look_up),
        (socket.socket, "connect", guarded("connect")),
        (socket.socket, "connect_ex", guarded("connect_ex")),
    ):
        yield


def _is_local(host: object) -> bool:
    text = os.fsdecode(host) if isinstance(host, (str, bytes)) else ""
    return not text or text.startswith(_LOCAL) or text == socket.gethostname()


# ---- trained weights ------------------------------------------------------------------------------------------------


class SkippedWeights(dict[Any, Any]):
    """Stands for a checkpoint nobody downloaded: whatever is looked up in it is such a checkpoint again."""

    def __missing__(self, key: object) -> SkippedWeights:
        return self

    def get(self, key: object, default: object = None) -> SkippedWeights:
        return self

    def pop(self, key: object, *default: object) -> SkippedWeights:
        return self


@contextmanager
def _no_weights() -> Iterator[None]:
    """Weights from a URL keep the shapes a constructor made, so they are neither fetched nor loaded.

    Only once torch is there: a file that imports it itself is imported under this same guard, by a child that has it.
    """
    if "torch" not in sys.modules:
        yield
        return
    import torch

    load = torch.nn.Module.load_state_dict
    skipped = False

    def from_url(*args: Any, **options: Any) -> SkippedWeights:
        nonlocal skipped
        skipped = True
        return SkippedWeights()

    def load_state_dict(self: Any, state_dict: Any, *args: Any, **options: Any) -> Any:
        if isinstance(state_dict, SkippedWeights) or (skipped and not state_dict):  # {k: v for k, v in skipped.items()}
            return torch.nn.modules.module._IncompatibleKeys([], [])
        return load(self, state_dict, *args, **options)

    original = torch.hub.load_state_dict_from_url
    _rebind("load_state_dict_from_url", original, from_url)
    try:
        with replaced((torch.nn.Module, "load_state_dict", load_state_dict)):
            yield
    finally:
        _rebind("load_state_dict_from_url", from_url, original)


def _rebind(name: str, old: object, new: object) -> None:
    """In every module: `from torch.hub import load_state_dict_from_url` binds the name, torchvision does."""
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is old:
            setattr(module, name, new)


def _asking_line() -> str:
    for frame in reversed(traceback.extract_stack()):
        if origin(frame.filename) is Origin.USER:
            return place(frame.filename, frame.lineno or 0, frame.line)
    return "import"
