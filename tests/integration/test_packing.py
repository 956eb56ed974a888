"""`--sequence-lengths`, through `main()`: what padding wastes, packing gives back."""

from pathlib import Path

import pytest
from user_files import MODELS

import advisor
from advisor.cli import main
from advisor.report.model import Report, load

FLAGS = "--device a100-sxm4-40gb --micro-batch 8 --tokens 1M --quiet --format json".split()


def assess(tmp_path: Path, *more: str) -> Report:
    output = tmp_path / "r.json"
    with pytest.raises(SystemExit) as ended:
        main(["assess", str(MODELS / "gpt.py"), *FLAGS, *more, "-o", str(output)])
    assert ended.value.code == 0
    return load(output)


def test_a_distribution_makes_packing_worth_its_fill(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("16\n" * 9 + "640\n")  # rows of 64 tokens: (9 x 16 + 64) / 640
    report = assess(tmp_path, "--sequence-lengths", str(tmp_path / "lengths.txt"))
    assert report.single is not None
    assert report.single.plan.recipe.choice("packing") == "fill-0.325"
    assert report.goal.samples == pytest.approx(1e6 / (64 * 0.325))  # tokens that are no padding
    rung = next(rung for rung in report.ladder if rung.option == "packing")
    assert rung.taken
    assert "-68 % time a sample" in rung.why
    assert any("1 longer ones (10 %) are cut to 64" in note for note in report.evidence.notes)
    assert [s.origin for s in report.settings if s.name == "sequence_lengths"] == ["flag"]


def test_without_lengths_nothing_is_packed_and_the_ladder_says_how(tmp_path: Path) -> None:
    report = assess(tmp_path)
    rung = next(rung for rung in report.ladder if rung.option == "packing")
    assert not rung.taken
    assert "--sequence-lengths" in rung.why


def test_a_mean_fill_in_the_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "advisor.toml").write_text("sequence-lengths = 0.5\n")
    monkeypatch.chdir(tmp_path)
    report = assess(tmp_path)
    assert report.single is not None
    assert report.single.plan.recipe.choice("packing") == "fill-0.5"
    assert [s.origin for s in report.settings if s.name == "sequence_lengths"] == ["advisor.toml"]


def test_lengths_of_a_model_without_tokens_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    images = ["--input", "f32:3x16x16", "--target", "i64[0,10)", "--loss", "ce"]
    with pytest.raises(SystemExit) as ended:
        main(["assess", str(MODELS / "cnn.py"), *images, "--device", "t4", "--sequence-lengths", "0.5", "--quiet"])
    assert ended.value.code == 2
    assert "needs a batch of token ids" in capsys.readouterr().err


def test_the_python_api_takes_the_lengths_themselves() -> None:
    target = MODELS / "gpt.py"
    report = advisor.assess(target, device="a100-sxm4-40gb", micro_batch=8, sequence_lengths=[32] * 5)
    assert report.single is not None
    assert report.single.plan.recipe.choice("packing") == "fill-0.5"
