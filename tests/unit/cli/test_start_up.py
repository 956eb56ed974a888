"""What starts without torch, in processes of their own."""

import subprocess
import sys
from pathlib import Path

import pytest
from fabricated_reports import data_parallel

from advisor.report.model import dump

ROOT = Path(__file__).parents[3]


def modules_after(code: str, folder: Path) -> set[str]:
    """Names of the modules that are loaded once `code` has run."""
    script = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{code}\nprint('\\n'.join(sys.modules), file=sys.stderr)\n"
    ended = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    return set(ended.stderr.split())


@pytest.mark.parametrize(
    "code",
    [
        "import advisor",
        "import advisor.cli",
        "from advisor.cli import _run; assert _run(['--help']) == 0",
        "from advisor.cli import _run; assert _run(['report', 'r.json']) == 0",
        "from advisor.cli import _run; assert _run(['gate', 'r.json', '--max-devices', '4']) == 1",
    ],
)
def test_no_torch(tmp_path: Path, code: str) -> None:
    (tmp_path / "r.json").write_text(dump(data_parallel()))
    assert "torch" not in modules_after(code, tmp_path)


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    loaded = modules_after("from advisor.cli import _run; assert _run(['--help']) == 0", tmp_path)
    assert not {"pydantic", "rich", "advisor.analysis", "advisor.report.model"} & loaded


@pytest.mark.parametrize(
    "command", [["report", "r.json"], ["gate", "r.json", "--max-devices", "8"], ["profiles", "list"]]
)
def test_what_reads_files_loads_no_rules_and_no_console(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "r.json").write_text(dump(data_parallel()))
    loaded = modules_after(f"from advisor.cli import _run; assert _run({command}) == 0", tmp_path)
    heavy = {"rich.console", "advisor.analysis", "advisor.advice.learning_rate", "advisor.trace.records"}
    assert not (heavy | {"advisor.cost.memory", "advisor.workload.loader", "advisor.cli.assess"}) & loaded


def test_the_package_exports_what_it_names(tmp_path: Path) -> None:
    code = "import advisor; assert advisor.Workload and advisor.Report and 'assess' in dir(advisor)"
    assert "torch" not in modules_after(code, tmp_path)


def test_unknown_attribute() -> None:
    import advisor

    with pytest.raises(AttributeError, match="no attribute 'asses'"):
        _ = advisor.asses


def test_a_pipe_that_closes_early(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(dump(data_parallel()))
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from advisor.cli import main; main(['report', 'r.json'])"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0
