"""The starter file assesses as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.errors import UsageError
from advisor.trace.records import TraceTarget
from advisor.trace.tracer import trace_step
from advisor.workload.loader import load
from advisor.workload.starter import STARTER, write_starter
from advisor.workload.target import TargetSpec


def test_it_traces_and_nothing_is_guessed(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    write_starter(path)
    workload, description = load(TargetSpec(target=str(path)))
    assert description.guesses == ()
    assert description.settings["global_batch"] == "512"
    assert description.variants == ("half depth", "half width")
    trace = trace_step(workload, TraceTarget(device_type="cpu"))
    # 8 blocks of 12 width^2 + 13 width, two norms' worth of ends, embeddings, head
    width = 512
    assert trace.num_parameters == 8 * (12 * width**2 + 13 * width) + (2 * 32_000 + 1024) * width + 2 * width
    assert trace.tokens_per_sample == 1024


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("mine")
    with pytest.raises(UsageError) as caught:
        write_starter(path)
    assert caught.value.message == f"{path} exists"
    assert path.read_text() == "mine"
    write_starter(path, force=True)
    assert path.read_text() == STARTER


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        write_starter(tmp_path / "no" / "model.py")
