"""Scripts that train, parse or fail on their top level, run statement by statement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from advisor.errors import WorkloadError
from advisor.workload.importing import import_file
from advisor.workload.loader import load
from advisor.workload.statements import Skipping
from advisor.workload.target import TargetSpec

Write = Callable[[str, str], Path]

SCRIPT = """\
from __future__ import annotations

import argparse
import no_such_package_of_ours
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=8)
options = parser.parse_args()


class Net(nn.Module):
    def __init__(self, later: NamedLater = None):
        super().__init__()
        self.layer = nn.Linear(options.width, 2)

    def forward(self, x):
        return self.layer(x)


data = open("no/such/file").read()
for epoch in range(10**12):
    pass
while True:
    pass
raise_if_called = lambda: 1 / 0
raise_if_called()
"""


def test_what_fails_or_trains_is_left_out_and_said(write: Write) -> None:
    skipping = Skipping()
    module = import_file(write("script_s.py", SCRIPT), skipping=skipping)
    assert module.options.width == 8
    assert [text.split(" ", 1)[0] for text in skipping.skipped] == ["4", "22", "23-24", "25-26", "28"]
    assert "ModuleNotFoundError" in skipping.skipped[0]
    assert skipping.skipped[2] == "23-24 (a loop)"
    assert skipping.skipped[4] == "28 (the call raise_if_called(...))"


def test_a_file_that_imports_relatively(write: Write) -> None:
    write("package_s/__init__.py", "")
    write("package_s/parts.py", "WIDTH = 3\n")
    path = write("package_s/train_s.py", "from .parts import WIDTH\nimport no_such_package_of_ours\n")
    assert import_file(path, skipping=Skipping()).WIDTH == 3


def test_the_report_says_what_was_left_out(write: Write) -> None:
    path = write("script_t.py", SCRIPT)
    with pytest.raises(WorkloadError) as caught:
        load(TargetSpec(target=str(path), inputs=("f32:8",)))
    assert "--skip-failing-statements" in (caught.value.hint or "")
    spec = TargetSpec(target=str(path), inputs=("f32:8",), skip_failing_statements=True)
    _, description = load(spec)
    assert description.model == "Net()"
    (guess,) = [guess for guess in description.guesses if guess.what == "import"]
    assert guess.chosen.startswith("lines 4 (ModuleNotFoundError")
    assert guess.flag == "--skip-failing-statements"
    assert spec.command().endswith("--skip-failing-statements")


def test_a_name_that_went_with_what_was_left_out(write: Write) -> None:
    source = SCRIPT.replace("parser.parse_args()", "parser.parse_args(['--no-such-flag'])")
    path = write("script_u.py", source)
    spec = TargetSpec(target=str(path), model="Net(1)", batch="model.width", skip_failing_statements=True)
    workload, _ = load(spec)
    with pytest.raises(NameError) as caught:
        workload.build_model()
    (note,) = caught.value.__notes__
    assert note.startswith("lines left out of the file: ")
    assert "10 (it called sys.exit(2))" in note
