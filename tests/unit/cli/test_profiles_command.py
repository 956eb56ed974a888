"""`advisor profiles` list, show, check."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from advisor.cli.profiles import app
from advisor.errors import ProfileError

RUNNER = CliRunner()


def test_list_has_devices_and_clusters() -> None:
    output = RUNNER.invoke(app, ["list"]).stdout
    line = next(line for line in output.splitlines() if line.startswith("h100-sxm5-80gb "))
    assert all(text in line for text in ("79.2 GiB", "3.35 TB/s", "989 TFLOP/s", "$6.88/h"))
    assert "dgx-h100" in output


def test_show_gives_each_value_its_source() -> None:
    output = RUNNER.invoke(app, ["show", "RTX 3090"]).stdout
    assert "NVIDIA GeForce RTX 3090 (rtx-3090)" in output
    assert "936 GB/s      [2]" in output
    assert "[2] Datasheet values, dense peaks (github:karpathy/nanochat@" in output
    assert "link bandwidth        -" in output


def test_show_a_cluster() -> None:
    output = RUNNER.invoke(app, ["show", "p5.48xlarge"]).stdout
    assert "8 x h100-sxm5-80gb" in output
    assert "price per node        $55.04/h" in output


def test_check_finds_no_fault_in_the_shipped_profiles() -> None:
    result = RUNNER.invoke(app, ["check"])
    assert result.exit_code == 0
    assert "no faults" in result.stdout


def test_check_lists_the_faults_of_all_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text('titel = "x"')
    result = RUNNER.invoke(app, ["check", str(tmp_path / "one.toml"), str(tmp_path / "two.toml")])
    assert isinstance(result.exception, ProfileError)
    assert result.exception.exit_code == 2
    for name in ("one", "two"):
        assert f"{name}.toml: 6 faults" in result.exception.message
    assert "titel: is no key of a profile; did you mean 'title'?" in result.exception.message


@pytest.mark.parametrize("command", ["list", "show t4", "check"])
def test_no_torch(command: str) -> None:
    code = (
        "import sys\nfrom advisor.cli.profiles import app\n"
        f"app({command.split()!r}, standalone_mode=False)\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
