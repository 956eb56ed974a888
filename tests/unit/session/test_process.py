"""The child process: limits, ends, and nothing left behind. The server is started, no user file is loaded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from advisor.session import messages, process
from advisor.session.process import Cause, ChildProcess, Death

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def gone(pid: int) -> bool:
    """No such process, or only its entry in the table."""
    status = Path(f"/proc/{pid}/stat")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.02)
    return False


def pid_of(child: ChildProcess) -> int:
    return child._process.pid


def test_a_time_limit() -> None:
    child = ChildProcess(memory_limit_bytes=None)
    os.kill(pid_of(child), signal.SIGSTOP)
    death = child.ask(messages.Start(), time_limit_s=0.2)
    assert isinstance(death, Death)
    assert (death.cause, death.reason) == (Cause.TIME_LIMIT, "took longer than 200 ms")
    assert child.closed
    assert gone(pid_of(child))


@pytest.mark.parametrize(
    ("number", "cause", "reason"),
    [
        (signal.SIGKILL, Cause.KILLED, "was ended by SIGKILL, most likely because the machine ran out of memory"),
        (signal.SIGTERM, Cause.DIED, "was ended by SIGTERM"),
    ],
)
def test_a_signal(number: signal.Signals, cause: Cause, reason: str) -> None:
    child = ChildProcess(memory_limit_bytes=None)
    os.kill(pid_of(child), number)
    death = child.ask(messages.Start(), time_limit_s=20)
    assert isinstance(death, Death)
    assert (death.cause, death.reason) == (cause, reason)


def test_an_interrupt_ends_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(pid: int) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "_memory_bytes", interrupt)
    child = ChildProcess(memory_limit_bytes=None)
    with pytest.raises(KeyboardInterrupt):
        child.ask(messages.Start(), time_limit_s=20)
    assert gone(pid_of(child))


def test_no_descriptor_and_no_process_is_left() -> None:
    before = sorted(path.name for path in Path("/proc/self/fd").iterdir())
    child = ChildProcess(memory_limit_bytes=None)
    child.close()
    child.close()
    assert sorted(path.name for path in Path("/proc/self/fd").iterdir()) == before
    assert gone(pid_of(child))


def test_no_orphan_survives_its_parent() -> None:
    code = (
        "import os, signal, time\n"
        "from advisor.session.process import ChildProcess\n"
        "child = ChildProcess(memory_limit_bytes=None)\n"
        "print(child._process.pid, flush=True)\n"
        "time.sleep(1)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    parent = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert parent.returncode == -signal.SIGKILL
    assert gone(int(parent.stdout))


def test_memory_is_that_of_this_process_and_its_children() -> None:
    own = process._memory_bytes(os.getpid())
    block = bytearray(b"x") * (64 << 20)
    assert process._memory_bytes(os.getpid()) - own > 60 << 20
    assert len(block) == 64 << 20
    assert 0 < process._free_memory() < 1 << 50


def test_the_users_line_in_a_dump() -> None:
    dump = (
        "Current thread 0x1 (most recent call first):\n"
        f'  File "{os.__file__}", line 3 in wait\n'
        '  File "/nowhere/model.py", line 7 in train\n'
        '  File "/nowhere/main.py", line 9 in <module>\n'
    )
    assert process._users_line(dump) == "/nowhere/model.py:7"
    assert process._users_line("") is None
