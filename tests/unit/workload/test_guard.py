"""Files that install, download or fetch weights while they are imported or built."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from advisor.errors import WorkloadError
from advisor.workload.guard import guarded
from advisor.workload.importing import import_file

Write = Callable[[str, str], Path]


def test_a_download_at_import_is_named_with_its_line(write: Write) -> None:
    path = write(
        "fetches.py",
        "import urllib.request\n"
        "try:\n"
        "    data = urllib.request.urlopen('http://example.invalid/train.bin')\n"
        "except OSError as error:\n"
        "    raise RuntimeError('no data') from error\n",
    )
    with pytest.raises(WorkloadError) as caught:
        import_file(path)
    assert f"{path}:5 " in caught.value.message
    assert f"refused to connect to example.invalid, asked for at {path}:3" in caught.value.message
    assert "data sets and trained weights are not needed" in (caught.value.hint or "")


def test_a_file_that_does_without_its_download_is_left_alone(write: Write) -> None:
    path = write(
        "offline.py",
        "import socket\n"
        "try:\n"
        "    socket.create_connection(('192.0.2.1', 80), timeout=1)\n"
        "except OSError:\n"
        "    WIDTH = 8\n",
    )
    assert import_file(path).WIDTH == 8


@pytest.mark.parametrize("command", ["wget x.invalid/data.zip", "git clone x.invalid/repo"])
def test_programs_that_download(write: Write, command: str) -> None:
    with pytest.raises(WorkloadError, match=f"refused to run `{command}`, asked for at .*gets.py:2") as caught:
        import_file(write("gets.py", f"import subprocess\nsubprocess.run({command.split()!r})\n"))
    assert "trained weights are not needed" in (caught.value.hint or "")


def test_this_machine_may_be_talked_to_and_everything_is_put_back() -> None:
    before = (socket.getaddrinfo, socket.socket.connect, subprocess.Popen.__init__, nn.Module.load_state_dict)
    with guarded(), socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        assert socket.getaddrinfo is not before[0]
    assert before == (socket.getaddrinfo, socket.socket.connect, subprocess.Popen.__init__, nn.Module.load_state_dict)
    assert "connect" not in vars(socket.socket)


def test_weights_from_a_url_are_neither_fetched_nor_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = type(sys)("holds_the_name")
    holder.load_state_dict_from_url = torch.hub.load_state_dict_from_url  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "holds_the_name", holder)
    model = nn.Linear(2, 2)
    weight = model.weight.detach().clone()
    with guarded():
        state = holder.load_state_dict_from_url("https://example.invalid/model.pth")  # type: ignore[attr-defined]
        model.load_state_dict(state)
        model.load_state_dict(state["state_dict"])
        state.pop("head.weight")
        model.load_state_dict({key: value for key, value in state.items() if "head" not in key})
        with pytest.raises(RuntimeError, match="Missing key"):
            model.load_state_dict({"weight": weight})
    assert torch.equal(model.weight, weight)
    assert holder.load_state_dict_from_url is torch.hub.load_state_dict_from_url  # type: ignore[attr-defined]
