"""One guarded child process: its start, its limits and its end. No torch, and no user code, on this side."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from advisor.session import messages
from advisor.units import format_bytes, format_seconds
from advisor.workload.failures import Origin, origin, place

_POLL_S = 0.1  # how often the child's memory is looked at
_DUMP_WAIT_S = 0.5  # for the traceback of a child that is about to be ended
_END_WAIT_S = 5.0  # for the kernel to take a killed process away
_OUTPUT_KEPT = 16_384  # bytes of what the user's code printed last
# Our limit must bite before the kernel picks a victim of its own.
_SHARE_OF_FREE_MEMORY = 0.9
# Only our package crosses, not its folder: beside it lie our own dependencies, which the user's file must not find. In
# safe-path mode, so that no file of the user's hides a module of Python itself.
_START = """\
import importlib.util, sys
spec = importlib.util.spec_from_file_location(
    "advisor", {package!r} + "/__init__.py", submodule_search_locations=[{package!r}])
sys.modules["advisor"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["advisor"])
from advisor.session.serve import main
main()
"""
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in ', re.MULTILINE)


class Cause(Enum):
    TIME_LIMIT = "time limit"
    MEMORY_LIMIT = "memory limit"
    KILLED = "killed"  # SIGKILL from outside: on Linux nearly always the kernel, out of memory
    DIED = "died"  # a signal such as SIGSEGV, or os._exit


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """Why there is no answer."""

    cause: Cause
    reason: str  # "allocated 12.3 GiB, over the limit of 10 GiB"
    where: str | None  # the user's line, where it is known
    output: str  # what the process printed last


class ChildProcess:
    """Starts the server and asks it; every way it can end is a `Death`, and `close` leaves nothing behind."""

    def __init__(self, *, memory_limit_bytes: int | None, python: str = sys.executable) -> None:
        self._memory_limit = memory_limit_bytes or _free_memory()
        self._output = bytearray()
        self.closed = False
        request_read, self._requests = os.pipe()
        self._replies, reply_write = os.pipe()
        start = _START.format(package=str(Path(__file__).parents[1]))
        fds = (request_read, reply_write)
        try:
            self._process = subprocess.Popen(
                [python, "-P", "-u", "-c", start, *map(str, fds), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=fds,
                env=_environment(),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._requests)
            os.close(self._replies)
            raise
        finally:
            for fd in fds:
                os.close(fd)

    def ask(self, request: object, *, time_limit_s: float) -> Any | Death:
        """The answer to one request, or why there is none (the child is gone then)."""
        try:
            return self._ask(request, time_limit_s=time_limit_s)
        except BaseException:  # an interrupt must not leave the user's code running
            self.close()
            raise

    def _ask(self, request: object, *, time_limit_s: float) -> Any | Death:
        with contextlib.suppress(BrokenPipeError):  # it is dead; reading says how it died
            _write(self._requests, messages.pack(request))
        reply = bytearray()
        deadline = time.monotonic() + time_limit_s
        stdout = self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._replies, selectors.EVENT_READ)
            selector.register(stdout, selectors.EVENT_READ)
            while True:
                # Asked before reading: whatever a process wrote before it ended is read below.
                ended = self._process.poll() is not None
                events = selector.select(0 if ended else _POLL_S)
                for key, _ in events:
                    data = os.read(key.fd, 1 << 20)
                    if not data:
                        selector.unregister(key.fileobj)
                    elif key.fd == self._replies:
                        reply += data
                    else:
                        self._keep_output(data)
                if (answer := messages.unpack(reply)) is not None:
                    return answer
                if ended and not events:
                    return self._died()
                if (used := _memory_bytes(self._process.pid)) > self._memory_limit:
                    limit = format_bytes(self._memory_limit)
                    return self._stop(Cause.MEMORY_LIMIT, f"allocated {format_bytes(used)}, over the limit of {limit}")
                if time.monotonic() > deadline:
                    return self._stop(Cause.TIME_LIMIT, f"took longer than {format_seconds(time_limit_s)}")

    def _died(self) -> Death:
        code = self._process.wait()
        output = self._text()
        self.close()
        if code >= 0:
            return self._death(Cause.DIED, f"ended its process with exit code {code} (os._exit?)")
        name = signal.Signals(-code).name
        cause = Cause.KILLED if -code == signal.SIGKILL else Cause.DIED
        why = ", most likely because the machine ran out of memory" if cause is Cause.KILLED else ""
        return Death(cause=cause, reason=f"was ended by {name}{why}", where=_users_line(output), output=output)

    def _stop(self, cause: Cause, reason: str) -> Death:
        """End the child, after asking it where it is."""
        self._output.clear()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGUSR1)
            self._drain(_DUMP_WAIT_S)
        death = self._death(cause, reason)
        self.close()
        return death

    def _death(self, cause: Cause, reason: str) -> Death:
        output = self._text()
        return Death(cause=cause, reason=reason, where=_users_line(output), output=output)

    def _drain(self, wait_s: float) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        deadline = time.monotonic() + wait_s
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0 and selector.select(left):
                if not (data := os.read(stdout.fileno(), 1 << 20)):
                    break
                self._keep_output(data)

    def _keep_output(self, data: bytes) -> None:
        self._output += data
        del self._output[:-_OUTPUT_KEPT]

    def _text(self) -> str:
        return self._output.decode(errors="replace").strip()

    def close(self) -> None:
        """End the child and everything it started."""
        if self.closed:
            return
        self.closed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_WAIT_S)
        os.close(self._requests)
        os.close(self._replies)
        if self._process.stdout is not None:
            self._process.stdout.close()


def _environment() -> dict[str, str]:
    """No downloads from the Hugging Face hub, no windows; the accelerator stays visible, for measurements."""
    return os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "MPLBACKEND": "Agg"}


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _users_line(dump: str) -> str | None:
    """The innermost frame of the user's code in what faulthandler wrote (most recent call first)."""
    frames = [(match["file"], int(match["line"])) for match in _FRAME.finditer(dump)]
    for wanted in (Origin.USER, Origin.PACKAGE):
        for file, line in frames:
            if origin(file) is wanted:
                return place(file, line)
    return None


def _memory_bytes(pid: int) -> int:
    """Resident memory of the process and its descendants that no file backs; 0 where /proc does not say.

    Resident, not reserved: building a large model takes terabytes of address space that is never touched.
    """
    total, pids = 0, [pid]
    while pids:
        folder = Path("/proc", str(pids.pop()))
        try:
            status = folder.joinpath("status").read_text()
            pids += map(int, folder.joinpath("task", folder.name, "children").read_text().split())
        except (OSError, ValueError):  # gone, or not Linux
            continue
        total += sum(int(kib) * 1024 for kib in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", status, re.MULTILINE))
    return total


def _free_memory() -> int:
    """What the child may take: most of what the machine, or the container around it, has free; no /proc, no limit."""
    try:
        available = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return sys.maxsize
    free = int(available[1]) * 1024 if available else sys.maxsize
    with contextlib.suppress(OSError, ValueError):  # no limit set: "max", or no such file
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        free = min(free, limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    return int(free * _SHARE_OF_FREE_MEMORY)
