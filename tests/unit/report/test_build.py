"""Results of a search become a report: trimmed, hashed, with snippets and the confirming command."""

from dataclasses import dataclass, replace

import pytest
from fabricated_reports import (
    ADVICE,
    AMP,
    BASELINE,
    CHECKPOINTING,
    CLUSTER,
    DESCRIPTION,
    DEVICE,
    DISTRIBUTED,
    GOAL,
    LADDER,
    LIGHTER,
    MEASUREMENT,
    SCALING,
    SENSITIVITIES,
    SETTINGS,
    SINGLE,
    single_device,
)

from advisor.report.build import build_configuration_report, build_report
from advisor.report.model import Report, Setting, dump, loads
from advisor.search.plan import Rejection, SearchResult, Verdict, VerdictKind


@dataclass(frozen=True)
class FakeOption:
    title: str
    order: int

    def snippet(self, value: str, names: object = None) -> str:
        return "" if value == "silent" else f"# {self.title} = {value}\n"


@dataclass(frozen=True)
class FakeStrategy:
    title: str

    def snippet(self, mesh: object, *, reshard_after_forward: bool, blocks: str) -> str:
        return f"# {self.title}, reshard {reshard_after_forward}\n"


OPTIONS = {"precision": FakeOption("Precision", 50), "checkpointing": FakeOption("Checkpointing", 20)}
STRATEGIES = {"ddp": FakeStrategy("DistributedDataParallel")}
RESULT = SearchResult(
    goal=GOAL,
    device=DEVICE,
    cluster=CLUSTER,
    baseline=BASELINE,
    single=SINGLE,
    nearest_single=SINGLE,
    distributed=DISTRIBUTED,
    ladder=LADDER,
    scaling=SCALING,
    rejections=(Rejection(plan=LIGHTER.plan, label="checkpoint", reason="slower", estimate=LIGHTER.estimate),),
    max_micro_batch_size=38,
    max_sequence_length=None,
    verdict=Verdict(kind=VerdictKind.SINGLE_DEVICE, undetermined=False, sentence="one does it", margin="wide"),
    notes=("seen twice", "seen twice"),
)


def built(result: SearchResult = RESULT, **changes: object) -> Report:
    arguments = {
        "settings": SETTINGS,
        "options": OPTIONS,
        "strategies": STRATEGIES,
        "learning_rate": ADVICE,
        "sensitivities": SENSITIVITIES,
        **changes,
    }
    return build_report(result, arguments.pop("description", DESCRIPTION), **arguments)


def choosing(kind: VerdictKind, **changes: object) -> SearchResult:
    return replace(RESULT, verdict=replace(RESULT.verdict, kind=kind), **changes)


def test_a_built_report_comes_back() -> None:
    report = built()
    assert loads(dump(report)) == report
    assert report.single == SINGLE
    assert report.learning_rate == ADVICE


def test_same_inputs_same_bytes() -> None:
    assert dump(built()) == dump(built())


def test_the_hash_covers_the_inputs() -> None:
    one = built().evidence.input_hash
    assert len(one) == 64
    assert built().evidence.input_hash == one
    assert built(settings=SETTINGS[1:]).evidence.input_hash != one
    assert built(replace(RESULT, goal=replace(GOAL, samples=1.0))).evidence.input_hash != one
    assert built(description=replace(DESCRIPTION, source_hash="other")).evidence.input_hash != one
    assert built(replace(RESULT, max_micro_batch_size=1)).evidence.input_hash == one


@pytest.mark.parametrize(
    ("typed", "stored"),
    [
        ("model.py", "model.py"),
        ("src/model.py:GPT", "src/model.py:GPT"),
        ("/home/someone/model.py", "model.py"),
        ("/home/someone/model.py:GPT", "model.py:GPT"),
        ("timm:resnet50", "timm:resnet50"),
    ],
)
def test_no_path_of_the_machine(typed: str, stored: str) -> None:
    assert built(description=replace(DESCRIPTION, target=typed)).description.target == stored


def test_lines_of_tables_have_no_breakdown() -> None:
    report = built()
    for candidate in (report.ladder[0].candidate, report.scaling[0].candidate):
        assert candidate is not None
        assert candidate.estimate.memory.by_module == ()
        assert candidate.estimate.time is not None
        assert candidate.estimate.time.by_class == ()
    assert report.rejections[0].estimate is None
    assert report.baseline.estimate.memory.by_module == BASELINE.estimate.memory.by_module


def test_a_long_tail_of_modules_is_summed() -> None:
    modules = tuple((f"layer.{i}", 1000 - i) for i in range(1000))
    memory = replace(SINGLE.estimate.memory, by_module=modules)
    many = replace(SINGLE, estimate=replace(SINGLE.estimate, memory=memory))
    kept = built(replace(RESULT, single=many)).single.estimate.memory.by_module
    assert kept[-1][0] == "800 other modules"
    assert sum(size for _, size in kept) == sum(size for _, size in modules)


def test_measurements_go_to_their_runs() -> None:
    report = built(baseline_measurement=MEASUREMENT, single_measurement=replace(MEASUREMENT, num_steps=3))
    assert report.baseline.measurement == MEASUREMENT
    assert report.single.measurement.num_steps == 3


def test_snippets_in_the_order_of_application() -> None:
    result = replace(RESULT, single=LIGHTER)
    assert [snippet.title for snippet in built(result).snippets] == ["Checkpointing: every-2", "Precision: amp-bf16"]


def test_an_option_without_code_has_no_snippet() -> None:
    quiet = replace(SINGLE, plan=replace(SINGLE.plan, recipe=SINGLE.plan.recipe.choosing("precision", "silent")))
    assert built(replace(RESULT, single=quiet)).snippets == ()


def test_the_strategy_comes_last() -> None:
    report = built(choosing(VerdictKind.DATA_PARALLEL))
    assert [snippet.title for snippet in report.snippets] == [
        "Precision: amp-bf16",
        "DistributedDataParallel on 8 devices",
    ]
    assert report.confirm_command == ""


def test_infeasible_shows_the_nearest_miss() -> None:
    report = built(choosing(VerdictKind.INFEASIBLE, single=None))
    assert report.snippets[0].title == "Precision: amp-bf16"


def test_the_confirming_command_repeats_what_was_typed() -> None:
    typed = (
        Setting(name="batch", value="torch.randn(B, 8)", origin="flag"),
        Setting(name="input", value="f32:8", origin="flag"),
        Setting(name="input", value="i64[0,9):4", origin="flag, over f32:4 from advisor.toml"),
        Setting(name="loss", value="ce", origin="advisor.toml"),
        Setting(name="device", value="a100-sxm4-40gb", origin="flag"),
    )
    assert built(replace(RESULT, single=LIGHTER), settings=typed).confirm_command == (
        "advisor measure model.py --batch 'torch.randn(B, 8)' --input f32:8 --input 'i64[0,9):4' "
        "--micro-batch 32 --global-batch 512 --option checkpointing=every-2 --option precision=amp-bf16"
    )


def test_rates_and_notes_of_the_plan_the_page_is_about() -> None:
    evidence = built().evidence
    assert evidence.rates == (*SINGLE.estimate.memory.sources, *SINGLE.estimate.time.sources)
    assert evidence.notes == ("seen twice",)


def test_one_configuration() -> None:
    report = build_configuration_report(
        "measure",
        replace(SINGLE, measurement=MEASUREMENT),
        DESCRIPTION,
        goal=GOAL,
        device=DEVICE,
        options=OPTIONS,
        strategies=STRATEGIES,
        notes=("a note",),
    )
    assert report.question == "measure"
    assert report.verdict is None
    assert report.recommended == report.baseline
    assert report.confirm_command == ""
    assert report.evidence.notes == ("a note",)
    assert loads(dump(report)) == report


def test_real_options_and_strategies_have_the_snippets() -> None:
    from advisor.discovery import discover
    from advisor.options.base import Option

    options = discover("advisor.options", "OPTION", Option)
    report = built(options=options)
    assert "torch.autocast" in report.snippets[0].code
    assert AMP in report.single.plan.recipe.choices
    assert CHECKPOINTING not in report.single.plan.recipe.choices


def test_shape_is_that_of_the_fabricated_reports() -> None:
    assert set(dict(built())) == set(dict(single_device()))


def test_no_path_of_the_machine_in_the_labels() -> None:
    description = replace(DESCRIPTION, target="/home/ann/bert/config.json", model="Bert of /home/ann/bert/config.json")
    report = build_report(RESULT, description, options=OPTIONS, strategies=STRATEGIES)
    assert report.description.target == "config.json"
    assert report.description.model == "Bert of config.json"
