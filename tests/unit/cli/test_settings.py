from pathlib import Path

import pytest

from advisor.analysis import Request
from advisor.cli.settings import (
    Layer,
    advisor_layer,
    file_layer,
    flag_layer,
    layer,
    merge,
    request,
    target_spec,
)
from advisor.errors import UsageError
from advisor.report.model import Setting
from advisor.workload.sequence_lengths import SequenceLengths


def flags(**parameters: object) -> Layer:
    return flag_layer(parameters)


def in_file(folder: Path, text: str, name: str = "advisor.toml") -> Layer:
    (folder / name).write_text(text)
    found = file_layer(folder)
    assert found is not None
    return found


def test_flags_that_were_not_given_say_nothing() -> None:
    assert flags(device=None, option=[], fine_tune=False, no_measure=False, quiet=True, output=None).values == {}


def test_no_measure_is_a_setting() -> None:
    assert request(merge(flags(no_measure=True))).measure is False
    assert request(merge(flags())).measure is True


def test_without_settings_the_defaults_of_the_request() -> None:
    assert request(merge(flags())) == Request()


def test_every_setting_reaches_the_request() -> None:
    asked = request(
        merge(
            flags(
                device="a100-sxm4-40gb",
                cluster="dgx-a100",
                max_devices="16",
                micro_batch="8",
                global_batch="512",
                samples="40M",
                deadline="5d",
                budget="$5000",
                price="2.49 USD/h",
                lr="3e-4",
                fine_tune=True,
                sequence_lengths="0.43",
                option=["precision=amp-bf16", "checkpointing=all"],
                plan="fsdp2:8",
            )
        )
    )
    assert asked == Request(
        device="a100-sxm4-40gb",
        cluster="dgx-a100",
        max_devices=16,
        micro_batch_size=8,
        global_batch_size=512,
        samples=40_000_000,
        deadline_s=5 * 86_400.0,
        budget_usd=5000.0,
        price_usd_per_hour=2.49,
        learning_rate=3e-4,
        fine_tune=True,
        sequence_lengths=SequenceLengths(source="0.43", share=0.43),
        choices=(("checkpointing", "all"), ("precision", "amp-bf16")),
        plan="fsdp2:8",
        settings=asked.settings,
    )
    assert request(merge(flags(device_memory="11019MiB"))).device_memory_bytes == 11019 * 1024**2
    assert request(merge(flags(tokens="15B"))).tokens == 15e9
    assert request(merge(flags(steps="1000"))).steps == 1000


def test_target_spec() -> None:
    spec = target_spec(
        merge(flags(model="GPT()", input=["f32:3x8", "i64[0,9):4"], target=["f32:1"], loss="ce", time_limit="5min")),
        target="model.py",
    )
    assert spec.target == "model.py"
    assert spec.inputs == ("f32:3x8", "i64[0,9):4")
    assert spec.targets == ("f32:1",)
    assert spec.expressions() == (
        "--model GPT()",
        "--loss ce",
        "--input f32:3x8",
        "--input i64[0,9):4",
        "--target f32:1",
    )
    assert spec.limits.time_s == 300.0
    assert target_spec(merge(flags(memory_limit="4 GiB")), target="m.py").limits.memory_bytes == 4 * 1024**3


def test_flags_over_file_over_advisor(tmp_path: Path) -> None:
    file = in_file(tmp_path, 'deadline = "7d"\ndevice = "l4"\n')
    own = advisor_layer({"deadline": "9d", "samples": "1M", "global_batch": "64"}, target="src/model.py:GPT")
    merged = merge(flags(deadline="5d"), file, own)
    assert merged.settings() == (
        Setting(
            name="deadline", value="5d", origin="flag, over 7d from advisor.toml, over 9d from ADVISOR in model.py"
        ),
        Setting(name="device", value="l4", origin="advisor.toml"),
        Setting(name="global_batch", value="64", origin="ADVISOR in model.py"),
        Setting(name="samples", value="1M", origin="ADVISOR in model.py"),
    )


def test_one_length_of_the_job_is_heard(tmp_path: Path) -> None:
    merged = merge(flags(steps="10"), in_file(tmp_path, "samples = 1000\n"))
    assert request(merged).steps == 10
    assert request(merged).samples is None
    with pytest.raises(UsageError, match="--samples and --tokens contradict each other"):
        merge(flags(samples="1M", tokens="1B"))


def test_repeatable_settings_are_listed_one_by_one() -> None:
    assert [s.value for s in merge(flags(option=["a=1", "b=2"])).settings()] == ["a=1", "b=2"]


def test_nearest_file_wins_and_a_pyproject_without_our_table_is_passed_over(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "advisor.toml").write_text('device = "far"\n')
    (tmp_path / "a" / "pyproject.toml").write_text('[tool.advisor]\ndevice = "near"\nglobal-batch = 8\n')
    (inner / "pyproject.toml").write_text("[tool.ruff]\n")
    found = file_layer(inner)
    assert found is not None
    assert (found.origin, found.values) == ("pyproject.toml", {"device": ("near",), "global_batch": ("8",)})


def test_toml_values_of_every_kind(tmp_path: Path) -> None:
    file = in_file(
        tmp_path,
        'samples = 4e7\nfine_tune = true\ninput = ["f32:8", "f32:9"]\nmeasure = false\nlr = 1e-3\n'
        '[option]\nprecision = "tf32"\ncheckpointing = "all"\n',
    )
    asked = request(merge(file))
    assert (asked.samples, asked.fine_tune, asked.measure, asked.learning_rate) == (40_000_000, True, False, 1e-3)
    assert asked.choices == (("checkpointing", "all"), ("precision", "tf32"))
    assert target_spec(merge(file), target="m.py").inputs == ("f32:8", "f32:9")


def test_a_named_config_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't read"):
        file_layer(tmp_path, config=tmp_path / "mine.toml")
    (tmp_path / "mine.toml").write_text('device = "l4"\n')
    found = file_layer(tmp_path, config=tmp_path / "mine.toml")
    assert found is not None
    assert found.origin == "mine.toml"


def test_profile_paths_start_at_the_file_that_says_them(tmp_path: Path) -> None:
    file = in_file(tmp_path, 'device = "gpus/mine.toml"\ncluster = "dgx-a100"\n')
    asked = request(merge(file))
    assert asked.device == str(tmp_path / "gpus" / "mine.toml")
    assert asked.cluster == "dgx-a100"
    assert [setting.value for setting in asked.settings] == ["dgx-a100", "gpus/mine.toml"]
    assert request(merge(flags(device="mine.toml"))).device == "mine.toml"


@pytest.mark.parametrize("text", ["device = ", "device = 'a'\ndevice = 'b'", "\xff"])
def test_broken_toml(tmp_path: Path, text: str) -> None:
    (tmp_path / "advisor.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"advisor\.toml is not TOML"):
        file_layer(tmp_path)


def test_unknown_names_get_the_closest_ones() -> None:
    with pytest.raises(UsageError, match=r"advisor\.toml: unknown setting 'dead-line'") as raised:
        layer("advisor.toml", {"dead-line": "5d"}, known=("deadline", "device"))
    assert raised.value.hint.startswith("did you mean 'deadline'")


def test_the_file_s_own_settings_are_not_about_what_is_built() -> None:
    with pytest.raises(UsageError, match=r"ADVISOR in model\.py: unknown setting 'loss'"):
        advisor_layer({"loss": "ce"}, target="model.py")


def test_one_value_where_one_is_due() -> None:
    with pytest.raises(UsageError, match="takes one value"):
        layer("advisor.toml", {"device": ["a", "b"]}, known=("device",))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"micro_batch": "0"}, "--micro-batch: '0' is not above zero"),
        ({"global_batch": "-4"}, "--global-batch: a count is due"),
        ({"micro_batch": "2.5"}, "--micro-batch: '2.5' is not a whole number"),
        ({"deadline": "5"}, "--deadline: a duration is due, but '5' is a bare number"),
        ({"budget": "5 GiB"}, "--budget: an amount of money is due"),
        ({"lr": "fast"}, "--lr: 'fast' is not a number"),
        ({"lr": "0"}, "--lr: '0' is not above zero"),
        ({"lr": "nan"}, "--lr: 'nan' is not above zero"),
        ({"option": ["precision"]}, "is not NAME=VALUE"),
        ({"option": ["a=1", "a=2"]}, "--option a is said twice"),
        ({"samples": "many"}, "--samples: a count is due"),
    ],
)
def test_values_that_make_no_sense(given: dict, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        request(merge(flags(**given)))
    assert message in raised.value.message


def test_an_error_names_the_file_that_said_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"deadline \(advisor\.toml\)"):
        request(merge(in_file(tmp_path, "deadline = 5\n")))
    with pytest.raises(UsageError, match=r"fine_tune \(advisor\.toml\): 'maybe' is neither true nor false"):
        request(merge(in_file(tmp_path, 'fine_tune = "maybe"\n')))


def test_a_file_of_lengths_starts_at_the_folder_of_the_settings_file(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("3\n")
    asked = request(merge(flags(), in_file(tmp_path, 'sequence_lengths = "lengths.txt"')))
    assert asked.sequence_lengths == SequenceLengths(source="lengths.txt", lengths=(3,))
    with pytest.raises(UsageError, match=r"^sequence_lengths \(advisor\.toml\): '7' is no share"):
        request(merge(flags(), in_file(tmp_path, "sequence_lengths = 7")))
