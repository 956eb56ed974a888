"""The child process: loads the user's file and answers requests until the parent is gone.

    python -m advisor.session.serve REQUEST_FD REPLY_FD PARENT_PID

Standard output and error are the parent's pipe: what the user's code prints is shown only where it explains a failure.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import traceback
from typing import BinaryIO

from advisor.errors import AdvisorError
from advisor.session import messages
from advisor.session.local import measure_recipe, trace_recipe
from advisor.workload.spec import Workload, WorkloadDescription

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_CRASH_EXIT_CODE = 101  # as the command line ends on a bug of ours


def main() -> None:
    request_fd, reply_fd, parent = (int(argument) for argument in sys.argv[1:4])
    _die_with(parent)
    for fd in (request_fd, reply_fd):
        os.set_inheritable(fd, False)  # not for processes the user's code starts
    # The parent sends the signal before it ends a hang, to learn the user's line; SIGSEGV and its kin are told too.
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    with os.fdopen(request_fd, "rb") as requests, os.fdopen(reply_fd, "wb") as replies:
        _serve(requests, replies)
    os._exit(0)  # atexit handlers and threads of the user's code have no say


def _die_with(parent: int) -> None:
    """Be killed when the parent dies, even while the user's code hangs; without Linux, end at the next request."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call
            os._exit(1)


def _serve(requests: BinaryIO, replies: BinaryIO) -> None:
    server = _Server()
    while (request := messages.read(requests)) is not None:
        reply = server.answer(request)
        replies.write(messages.pack(reply))
        replies.flush()
        if isinstance(reply, messages.Crashed):
            os._exit(_CRASH_EXIT_CODE)


class _Server:
    """The one workload of this process."""

    def __init__(self) -> None:
        self._loaded: tuple[Workload, WorkloadDescription] | None = None

    def answer(self, request: object) -> object:
        try:
            return self._answer(request)
        except AdvisorError as error:
            return messages.Failed(error=error)
        except BaseException:  # an interrupt comes from outside, and the parent decides what it means
            return messages.Crashed(traceback=traceback.format_exc())

    def _answer(self, request: object) -> object:
        if isinstance(request, messages.Start):
            return messages.Started(torch=_torch_version())
        from advisor.workload.loader import load, refined

        if isinstance(request, messages.Load):
            self._loaded = load(request.spec)
            return self._loaded[1]
        assert self._loaded is not None
        workload, description = self._loaded
        if isinstance(request, messages.Trace):
            trace = trace_recipe(workload, request.recipe, request.target)
            self._loaded = workload, refined(description, workload)
            return messages.Traced(trace=trace, description=self._loaded[1])
        assert isinstance(request, messages.Measure)
        return measure_recipe(workload, request.recipe, time_limit_s=request.time_limit_s)


def _torch_version() -> str | None:
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return None
    import advisor.workload.loader  # noqa: F401 (here, so that the limits count the user's code alone)

    return str(torch.__version__)


if __name__ == "__main__":
    main()
