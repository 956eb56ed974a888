"""Through `main()`: every exit code, and what goes to which stream."""

from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
from fabricated_reports import DESCRIPTION, REPORTS

from advisor import analysis
from advisor.cli import main
from advisor.errors import WorkloadError
from advisor.report.model import dump, loads
from advisor.session import child


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """`run("gate", ...)`: exit code, standard output, standard error; in an empty folder with the stored reports."""
    monkeypatch.chdir(tmp_path)
    for name, report in REPORTS.items():
        (tmp_path / f"{name}.json").write_text(dump(report()))

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, captured.out, captured.err

    return call


class FakeSession:
    """Stands for the guarded child: nothing is loaded."""

    def __init__(self, spec: object) -> None:
        self.spec = spec
        self.description = DESCRIPTION

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


def answering(monkeypatch: pytest.MonkeyPatch, question: str, answer: Callable) -> None:
    monkeypatch.setattr(child, "ChildSession", FakeSession)
    monkeypatch.setattr(analysis, f"{question}_session", answer)


def raising(error: BaseException) -> Callable:
    def answer(*arguments: object) -> None:
        raise error

    return answer


def test_a_report_is_rendered(run: Callable) -> None:
    code, out, err = run("report", "single_device.json")
    assert (code, err) == (0, "")
    assert out.startswith("advisor: GPT(GPTConfig()) in model.py on NVIDIA A100 SXM4 40GB\n")
    assert "\x1b" not in out


def test_a_report_goes_to_a_file(run: Callable, tmp_path: Path) -> None:
    assert run("report", "single_device.json", "-o", "page.md") == (0, "", "")
    assert (tmp_path / "page.md").read_text().startswith("# advisor")
    assert (
        run("report", "single_device.json", "-f", "json", "-o", "-")[1] == (tmp_path / "single_device.json").read_text()
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("single_device.json",), 0),
        (("single_device.json", "--max-devices", "1", "--deadline", "5d"), 0),
        (("single_device.json", "--fail-if-single-device"), 1),
        (("data_parallel.json", "--max-devices", "4"), 1),
        (("infeasible.json",), 1),
        (("undetermined.json",), 2),
        (("undetermined.json", "--undetermined", "pass"), 0),
        (("undetermined.json", "--undetermined", "fail"), 1),
        (("single_device.json", "--max-cost", "120 USD"), 2),
    ],
)
def test_gate(run: Callable, arguments: tuple[str, ...], code: int) -> None:
    ended, out, err = run("gate", *arguments)
    assert (ended, err) == (code, "")
    assert out.endswith({0: "The gate passes.\n", 1: "The gate fails.\n", 2: "The gate has no answer.\n"}[code])


def test_gate_policy_with_flags_over_it(run: Callable, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("max_devices = 4\n")
    assert run("gate", "data_parallel.json", "--policy", "policy.toml")[0] == 1
    assert run("gate", "data_parallel.json", "--policy", "policy.toml", "--max-devices", "8")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report", "none.json"), "error: can't read none.json"),
        (("gate", "none.json"), "error: can't read none.json"),
        (("gate", "single_device.json", "--policy", "none.toml"), "error: can't read none.toml"),
        (("gate", "single_device.json", "--max-cost", "120"), "--max-cost = '120'"),
        (("gate", "single_device.json", "--max-devices", "few"), "--max-devices"),
        (("gate", "single_device.json", "--undetermined", "maybe"), "one of fail, pass, unanswered"),
        (("report", "single_device.json", "-f", "pdf"), "unknown format 'pdf'"),
        (("report", "single_device.json", "-o", "page.pdf"), "no format has the suffix '.pdf'"),
        (("report",), "Missing argument"),
        (("asess", "model.py"), "Did you mean 'assess'"),
        (("assess", "model.py", "--devise", "h100"), "No such option"),
        (("assess", "none.py"), "no such file: none.py"),
        (("assess", "none.py", "--micro-batch", "0"), "--micro-batch: '0' is not above zero"),
        (("assess", "none.py", "-o", "none/r.json"), "there is no folder none"),
        (("assess", "none.py", "--gate", "none.toml"), "can't read none.toml"),
        (("init", "none/model.py"), "there is no folder none"),
    ],
)
def test_not_answered(run: Callable, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str) -> None:
    monkeypatch.setattr(analysis, "assess_session", raising(AssertionError("must not be asked")))
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_an_error_has_its_hint_and_steers_no_terminal(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, "assess", raising(WorkloadError("model.py:3: \x1b[2Jboom\nline two", hint="mend it")))
    code, out, err = run("assess", "model.py")
    assert (code, out) == (2, "")
    assert err == "error: model.py:3: \N{REPLACEMENT CHARACTER}[2Jboom\nline two\nhint: mend it\n"


def test_a_bug_is_ours(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, "assess", raising(ZeroDivisionError("oh")))
    code, out, err = run("assess", "model.py")
    assert (code, out) == (101, "")
    assert "ZeroDivisionError: oh" in err
    assert "this is a bug in advisor" in err


def test_interrupted(run: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answering(monkeypatch, "assess", raising(KeyboardInterrupt()))
    code, out, _ = run("assess", "model.py", "-o", "r.json")
    assert (code, out) == (130, "")
    assert not (tmp_path / "r.json").exists()


def test_interrupted_while_writing(run: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    monkeypatch.setattr(Path, "replace", raising(KeyboardInterrupt()))
    assert run("report", "single_device.json", "-o", "r.md")[0] == 130
    assert set(tmp_path.iterdir()) == before


def test_assess_asks_with_what_was_said(run: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def assess(session: FakeSession, request: analysis.Request, tell: Callable) -> object:
        asked.extend((session.spec, request))
        tell("searching", 0.5)
        return REPORTS["single_device"]()

    answering(monkeypatch, "assess", assess)
    (tmp_path / "advisor.toml").write_text('cluster = "dgx-a100"\nloss = "ce"\n')
    code, out, err = run("assess", "model.py", "--samples", "40M", "--option", "precision=tf32", "-f", "json")
    assert (code, err) == (0, "")
    assert loads(out) == REPORTS["single_device"]()
    spec, request = asked
    assert (spec.target, spec.loss) == ("model.py", "ce")
    assert (request.samples, request.cluster, request.choices) == (40_000_000, "dgx-a100", (("precision", "tf32"),))
    assert {setting.name: setting.origin for setting in request.settings}["cluster"] == "advisor.toml"


@pytest.mark.parametrize("question", ["estimate", "measure"])
def test_one_configuration(run: Callable, monkeypatch: pytest.MonkeyPatch, question: str) -> None:
    answering(monkeypatch, question, lambda session, request, tell: REPORTS[question]())
    code, out, err = run(question, "model.py", "--micro-batch", "32")
    assert (code, err) == (0, "")
    assert "1. Verdict" in out


@pytest.mark.parametrize(("name", "code"), [("single_device", 0), ("infeasible", 1), ("undetermined", 2)])
def test_assess_under_a_gate(
    run: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, code: int
) -> None:
    answering(monkeypatch, "assess", lambda *arguments: REPORTS[name]())
    (tmp_path / "policy.toml").write_text("max_devices = 8\n")
    ended, out, err = run("assess", "model.py", "--gate", "policy.toml", "-f", "json")
    assert ended == code
    assert loads(out) == REPORTS[name]()
    assert "The gate" in err
    assert run("assess", "model.py")[0] == 0


def test_version_and_help(run: Callable) -> None:
    code, out, _ = run("--version")
    assert (code, out) == (0, "advisor 0.1.0\n")
    assert run("--help")[0] == 0
    code, out, err = run()
    assert (code, out) == (2, "")
    assert err.startswith("Usage: advisor")


def test_init(run: Callable, tmp_path: Path) -> None:
    code, out, _ = run("init")
    assert (code, out) == (0, "wrote model.py; assess it with: advisor assess model.py\n")
    assert run("init")[0] == 2
    assert (tmp_path / "model.py").exists()
