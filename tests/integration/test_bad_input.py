"""Inputs that can't be assessed, through `main()`: exit code 2, a message that tells, and nothing written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from user_files import MODELS

from advisor.cli import main

RTX_3090 = ("--device", "rtx-3090")
EIGHT_FLOATS = ("--input", "f32:8")

BROKEN_PROFILE = """\
vendor = "Acme"
architecture = "One"
device_type = "cuda"
memory_capacity = "80 parsecs"
"""

HANGS_IN_FORWARD = """\
import time

from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        open("in_forward", "w").close()
        while True:
            time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(capsys: pytest.CaptureFixture[str], target: str, *flags: str) -> str:
    """What standard error says, once it is sure that nothing else was said or written."""
    before = set(Path().iterdir())
    with pytest.raises(SystemExit) as ended:
        main(("assess", target, *flags, "--no-measure", "-q", "-o", "report.json"))
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert "Traceback" not in err
    assert set(Path().iterdir()) == before
    return err


@pytest.mark.parametrize(
    ("name", "flags", "parts"),
    [
        ("no_such_file.py", (), ("no such file: ", "hint: TARGET is model.py, ")),
        (
            "broken_syntax.py",
            (),
            (
                "broken_syntax.py:4 (class Net(nn.Module)): SyntaxError: expected ':'",
                "hint: correct line 4; Python stops reading at the mark:\n    class Net(nn.Module)\n",
                "\n                        ^\n",
            ),
        ),
        (
            "broken_import.py",
            (),
            (
                "broken_import.py:3 (import no_such_package_of_ours): ModuleNotFoundError",
                "hint: pip install no_such_package_of_ours",
            ),
        ),
        (
            "needs_args.py",
            (),
            (
                "needs_args.py needs arguments only you know: config",
                "--model 'Tiny(TinyConfig(vocab_size=...))'",
            ),
        ),
        (
            "wrong_forward.py",
            EIGHT_FLOATS,
            ("wrong_forward.py:11 (return self.second(self.first(x)))", "[1, 16] X [8, 4]"),
        ),
        (
            "gpt.py",
            EIGHT_FLOATS,
            ("gpt.py:63 (x = self.drop(self.wte(idx) + self.wpe(positions)))", "but got torch.float32 instead"),
        ),
        (
            "vector_loss.py",
            (),
            (
                "vector_loss.py:20 (return F.mse_loss(model(batch), batch, reduction=",
                "): the loss has shape (1, 8), not a scalar",
                "hint: reduce it there, as in return loss.mean()",
            ),
        ),
        ("no_params.py", EIGHT_FLOATS, ("Net has no parameters: there is nothing to train",)),
        ("frozen.py", EIGHT_FLOATS, ("all 2 parameters of Net are frozen (requires_grad=False)",)),
        (
            "hangs.py",
            ("--time-limit", "2s"),
            ("hangs.py: your code took longer than 2 s at ", "hangs.py:4 (time.sleep(0.01))", "raise the time limit"),
        ),
        ("calls_exit.py", (), ("calls_exit.py:9 (sys.exit(3)): it called sys.exit(3)",)),
        (
            "allocates.py",
            ("--memory-limit", "600MiB"),
            ("allocates.py: your code allocated ", "over the limit of 600 MiB at ", "allocates.py:"),
        ),
    ],
)
def test_a_file(capsys: pytest.CaptureFixture[str], name: str, flags: tuple[str, ...], parts: tuple[str, ...]) -> None:
    err = refused(capsys, str(MODELS / name), *flags, *RTX_3090)
    assert err.startswith("error: ")
    for part in parts:
        assert part in err


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ((*RTX_3090, "--micro-batch", "0"), ("error: --micro-batch: '0' is not above zero",)),
        ((*RTX_3090, "--global-batch", "0"), ("error: --global-batch: '0' is not above zero",)),
        ((*RTX_3090, "--global-batch", "-4"), ("error: --global-batch: ", "'-4' is not")),
        (("--device", "rtx-309"), ("error: unknown device 'rtx-309'\n", "hint: did you mean 'rtx-3090'?")),
        (
            ("--device", "broken.toml"),
            (
                "error: broken.toml: ",
                '  title: is missing; expected title = "..."\n',
                "  memory_capacity: ",
                "80 parsecs",
            ),
        ),
    ],
)
def test_a_flag(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], parts: tuple[str, ...]) -> None:
    Path("broken.toml").write_text(BROKEN_PROFILE)
    err = refused(capsys, str(MODELS / "mlp.py"), *flags)
    for part in parts:
        assert part in err


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"architectures": [', "config.json is not JSON: Expecting value: line 1 column 20"), (None, "no such file")],
)
def test_a_config(capsys: pytest.CaptureFixture[str], text: str | None, message: str) -> None:
    if text is not None:
        Path("config.json").write_text(text)
    assert message in refused(capsys, "config.json", *RTX_3090)


# ---- Ctrl-C ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def _interrupts_arrive() -> Iterator[None]:
    """A shell starts jobs in the background with SIGINT ignored, and processes inherit that; not ours."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def wait_for(condition: Callable[[], bool], *, what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def running(pid: int) -> bool:
    """In the table of processes, and not only as an entry that waits to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.usefixtures("_interrupts_arrive")
@pytest.mark.parametrize("phase", ["loading", "tracing"])
def test_ctrl_c(tmp_path: Path, phase: str) -> None:
    marker = tmp_path / "in_forward"
    model = tmp_path / "model.py"
    if phase == "loading":
        hangs = (MODELS / "hangs.py").read_text()
        model.write_text('open("in_forward", "w").close()\n' + hangs)
    else:
        model.write_text(HANGS_IN_FORWARD)
    command = (sys.executable, "-m", "advisor", "assess", "model.py", *EIGHT_FLOATS, *RTX_3090, "-o", "report.json")
    source = {"PYTHONPATH": str(Path(main.__code__.co_filename).parents[2])}  # where it is not installed
    with subprocess.Popen(command, cwd=tmp_path, env=os.environ | source, stderr=subprocess.PIPE, text=True) as advisor:
        try:
            wait_for(marker.exists, what=f"the user's code while {phase}")
            (child,) = children(advisor.pid)
            advisor.send_signal(signal.SIGINT)
            _, err = advisor.communicate(timeout=60)
        finally:
            advisor.kill()
    assert advisor.returncode == 130
    assert err.endswith("error: interrupted\n")
    assert "Traceback" not in err
    assert not running(child)
    assert not [path for path in tmp_path.iterdir() if "report" in path.name]
