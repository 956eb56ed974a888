"""What the page says: sections, their order, labels of every figure, blanks with a reason."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from fabricated_reports import (
    AMP,
    BASELINE,
    DISTRIBUTED,
    LADDER,
    REPORTS,
    SINGLE,
    data_parallel,
    estimate,
    infeasible,
    measure,
    measured,
    single_device,
    time,
    undetermined,
)

from advisor.cost.estimate import UnpricedOperator
from advisor.report.blocks import Bars, Block, Code, Notes, Paragraph, Table
from advisor.report.model import Report
from advisor.report.view import headline, sections, title
from advisor.trace.records import Category

TITLES = [
    "Verdict",
    "One device beside distributed",
    "What was tried on one device",
    "Where the memory goes",
    "Where the step goes",
    "Scaling",
    "Batch and learning rate",
    "What would flip the verdict",
    "Run it",
    "Evidence",
]


def blocks(report: Report, section: str) -> tuple[Block, ...]:
    return next(found.blocks for found in sections(report) if found.title == section)


def table(report: Report, section: str, *, first: str) -> Table:
    return next(
        block for block in blocks(report, section) if isinstance(block, Table) and block.columns[0].title == first
    )


def row(found: Table, name: str) -> list[str]:
    return next([cell.text for cell in cells] for cells in found.rows if cells[0].text == name)


def prose(report: Report, section: str) -> str:
    return " ".join(block.text for block in blocks(report, section) if isinstance(block, Paragraph))


def test_ten_sections_in_order() -> None:
    assert [section.title for section in sections(single_device())] == TITLES


@pytest.mark.parametrize("report", [estimate(), measure()])
def test_one_configuration_keeps_the_order_of_those_that_apply(report: Report) -> None:
    kept = [section.title for section in sections(report)]
    assert kept == [name for name in TITLES if name in kept]
    assert {"Verdict", "Where the memory goes", "Where the step goes", "Evidence"} < set(kept)


def test_title_and_headline() -> None:
    assert title(single_device()) == "GPT(GPTConfig()) in model.py on NVIDIA A100 SXM4 40GB"
    assert headline(single_device()) == "single-device"
    assert headline(undetermined()) == "single-device (undetermined)"
    assert headline(estimate()) == "fits"


def test_verdict_names_what_would_decide_or_give() -> None:
    assert "What would decide it: run one step" in prose(undetermined(), "Verdict")
    assert "What would have to give: a deadline of 3.71 days" in prose(infeasible(), "Verdict")


def test_each_guess_is_printed_with_its_flag() -> None:
    shown = table(single_device(), "Verdict", first="Assessed")
    assert row(shown, "Batch")[1].endswith("(guessed; override with --batch)")
    assert "guessed" not in row(shown, "Loss")[1]
    assert row(table(single_device(), "Evidence", first="Guessed"), "optimizer")[2] == "--optimizer"


def test_side_by_side() -> None:
    shown = table(single_device(), "One device beside distributed", first="")
    assert [column.title for column in shown.columns] == ["", "As it is", "One device", "Distributed"]
    assert row(shown, "Plan")[1:] == ["one device", "one device", "DDP on 8 devices"]
    assert row(shown, "Finish")[1:] == ["8.5 days", "3.71 days", "12.2 h"]
    assert row(shown, "Cost")[1:] == ["$263", "$115", "$125"]
    assert row(shown, "Optimisation")[1:] == ["unchanged", "numerics: precision", "numerics: precision"]


def test_the_step_as_it_is_may_be_the_best() -> None:
    report = single_device().model_copy(update={"single": BASELINE, "nearest_single": BASELINE, "distributed": None})
    shown = table(report, "One device beside distributed", first="")
    assert [column.title for column in shown.columns] == ["", "One device, as it is"]


def test_nearest_miss_beside_the_step_as_it_is() -> None:
    shown = table(infeasible(), "One device beside distributed", first="")
    assert [column.title for column in shown.columns] == ["", "As it is", "One device, nearest miss"]


def test_changed_global_batch_is_said() -> None:
    larger = replace(
        DISTRIBUTED, plan=replace(DISTRIBUTED.plan, recipe=replace(SINGLE.plan.recipe, num_microbatches=4))
    )
    report = data_parallel().model_copy(update={"distributed": larger})
    shown = table(report, "One device beside distributed", first="")
    assert row(shown, "Optimisation")[3].startswith("global batch 512 -> 1024")


def test_measured_rows_say_how_a_run_ended() -> None:
    rows = table(measured(), "One device beside distributed", first="").rows
    measured_rows = [[cell.text for cell in cells] for cells in rows[[r[0].text for r in rows].index("Measured") :]]
    assert measured_rows[1] == ["Step", "out-of-memory", "4.4 s", "-"]


def test_without_a_goal_what_is_done_in_a_day_a_week_and_a_month() -> None:
    no_goal = single_device().model_copy(
        update={
            "goal": replace(single_device().goal, samples=None, deadline_s=None),
            "baseline": replace(BASELINE, finish_s=None, cost_usd=None),
        }
    )
    shown = table(no_goal, "One device beside distributed", first="")
    assert row(shown, "In a day")[2] == "10.8M samples"
    assert "no length of the job is stated (--samples, --tokens or --steps)" in shown.caption


def test_blank_cost_says_why() -> None:
    shown = table(infeasible(), "One device beside distributed", first="")
    assert row(shown, "Cost")[1:] == ["-", "-"]
    assert "no price is stated for a100-sxm4-40gb (--price)" in shown.caption
    free = replace(DISTRIBUTED, cost_usd=None)
    shown = table(single_device().model_copy(update={"distributed": free}), "One device beside distributed", first="")
    assert "no price is stated for dgx-a100-40gb (--price)" in shown.caption


def test_blank_time_says_why() -> None:
    assert "no rates are known" in prose(undetermined(), "Where the step goes")


def test_ladder_has_every_rung_with_its_reason() -> None:
    shown = table(single_device(), "What was tried on one device", first="Option")
    assert len(shown.rows) == len(LADDER) - 1
    taken = row(shown, "bf16 autocast")
    assert taken[1:6] == ["33.1 GiB", "4.1 s", "3.71 days", "numerics", "yes"]
    assert taken[6] == "fits with 6 GiB to spare and is the fastest step"
    not_tried = next(b for b in blocks(single_device(), "What was tried on one device") if isinstance(b, Notes))
    assert not_tried.items == ("channels last — there is no convolution",)


def test_rejections_with_one_reason_are_one_line() -> None:
    notes = next(block for block in blocks(single_device(), "Scaling") if isinstance(block, Notes))
    assert notes.items == ("48 devices; DDP on 48 devices — a global batch of 512 is not divisible by 48 ranks",)


def test_memory_parts_add_up_to_required() -> None:
    bars = next(block for block in blocks(single_device(), "Where the memory goes") if isinstance(block, Bars))
    *parts, required, usable = bars.bars
    assert required.label == "required"
    assert sum(bar.share for bar in parts) == pytest.approx(required.share, abs=1e-6)
    assert usable.share == 1.0


def test_every_category_has_a_name() -> None:
    for category in Category:
        peak = replace(BASELINE.estimate.memory.peak, by_category=((category, 1024**3),))
        memory = replace(BASELINE.estimate.memory, peak=peak)
        report = estimate().model_copy(
            update={"baseline": replace(BASELINE, estimate=replace(BASELINE.estimate, memory=memory))}
        )
        bars = next(block for block in blocks(report, "Where the memory goes") if isinstance(block, Bars))
        assert bars.bars[0].texts == ("1.0 GiB",)


def test_modules_alike_are_one_line() -> None:
    found = [block for block in blocks(single_device(), "Where the memory goes") if isinstance(block, Bars)]
    assert [bar.label for bar in found[1].bars] == ["transformer.h.* (12 x 1.6 GiB)", "lm_head"]


def test_time_parts_add_up_to_the_step() -> None:
    bars = next(block for block in blocks(estimate(), "Where the step goes") if isinstance(block, Bars))
    *parts, step = bars.bars
    assert step.label == "step"
    assert sum(bar.share for bar in parts) == pytest.approx(1.0)


def test_operators_that_could_not_be_priced_are_listed() -> None:
    assert row(table(estimate(), "Where the step goes", first="Not priced"), "mylib.scan.default")[1:4] == [
        "24",
        "4 ms",
        "0.71 %",
    ]


def test_no_cluster() -> None:
    assert "no cluster was named (--cluster)" in prose(infeasible(), "Scaling")


def test_learning_rate() -> None:
    changed = table(data_parallel(), "Batch and learning rate", first="")
    assert row(changed, "Learning rate") == ["Learning rate", "0.0006", "0.000849"]
    assert "LR-2" in changed.caption
    assert "unchanged, because the global batch is unchanged" in prose(single_device(), "Batch and learning rate")


def test_run_it() -> None:
    codes = [block for block in blocks(single_device(), "Run it") if isinstance(block, Code)]
    assert codes[0].text.startswith("advisor measure model.py")
    assert codes[1].title == "Precision: amp-bf16"
    assert "nearest miss" in prose(infeasible(), "Run it")


def test_evidence() -> None:
    page = prose(single_device(), "Evidence")
    assert "advisor 0.1.0, torch 2.13.0, python 3.11.9" in page
    assert "4f6c1a0d9b7e8f2a" in page
    assert "none on record" in prose(undetermined(), "Evidence")
    settings = table(single_device(), "Evidence", first="Setting")
    assert row(settings, "deadline")[2] == "flag, over 7d from advisor.toml"


def test_measured_beside_predicted() -> None:
    shown = table(measured(), "Evidence", first="Run")
    assert row(shown, "recommended")[1:4] == ["4.1 s", "4.4 s", "0.932 x"]
    assert "out-of-memory, model.py:112 in forward" in row(shown, "as it is")[-1]


def labels_of(report: Report) -> Iterator[tuple[str, str]]:
    """Every figure's label, beside the text that must say it: its row group, its column and the caption."""
    for section in sections(report):
        for block in section.blocks:
            if isinstance(block, Bars):
                yield str(block.provenance), block.title + block.caption
            if isinstance(block, Table):
                group = ""
                for cells in block.rows:
                    if not any(cell.text for cell in cells[1:]):
                        group = cells[0].text
                    for column, cell in zip(block.columns, cells, strict=True):
                        if cell.provenance is not None:
                            yield str(cell.provenance), f"{group} {column.title} {block.title} {block.caption}"


@pytest.mark.parametrize("name", REPORTS)
def test_every_figure_is_labelled(name: str) -> None:
    for label, context in labels_of(REPORTS[name]()):
        assert label in context.lower() or (label == "predicted" and "ratio is predicted" in context.lower())


def test_zero_length_job_and_empty_memory_do_not_divide() -> None:
    memory = BASELINE.estimate.memory
    peak = replace(memory.peak, by_category=())
    empty = replace(memory, required_bytes=0, usable_bytes=0, by_module=(), peak=peak)
    still = replace(
        time(1.0), step_s=0.0, unpriced=(UnpricedOperator(name="x", count=1, bound_seconds=1.0, module=""),)
    )
    nothing = replace(BASELINE, estimate=replace(BASELINE.estimate, memory=empty, time=still))
    report = single_device().model_copy(update={"baseline": nothing, "single": nothing, "nearest_single": nothing})
    assert len(sections(report)) == 10


def test_choices_of_another_value_are_not_called_risky() -> None:
    other = replace(SINGLE, plan=replace(SINGLE.plan, recipe=replace(SINGLE.plan.recipe, choices=(("lora", "8"), AMP))))
    report = single_device().model_copy(update={"single": other})
    shown = table(report, "One device beside distributed", first="")
    assert row(shown, "Optimisation")[2] == "numerics: precision"


def test_the_learning_rate_is_that_of_the_recommended_plan_and_the_other_is_labelled() -> None:
    advice = data_parallel().learning_rate
    report = single_device().model_copy(
        update={"distributed": data_parallel().distributed, "learning_rate_distributed": advice}
    )
    text = prose(report, "Batch and learning rate")
    assert text.startswith("One device: unchanged")
    assert advice is not None
    assert f"DDP on 8 devices, not needed: {advice.sentence}" in text


def test_extrapolated_limits_say_so_and_their_absence_why() -> None:
    tried = "What was tried on one device"
    assert "about 38 (predicted; required memory extended in a straight line" in prose(single_device(), tried)
    scores = single_device().model_copy(update={"max_sequence_length": None, "tokens_per_sample": 64})
    assert "attention keeps scores" in prose(scores, tried)
    flat = single_device().model_copy(update={"max_micro_batch_size": None})
    assert "did not grow" in prose(flat, tried)


def test_a_hook_is_named_with_its_file_and_class() -> None:
    description = replace(single_device().description, model="build_model()", target="jobs/train.py")
    report = single_device().model_copy(update={"description": description, "model_class": "Net"})
    assert title(report) == "Net of build_model() in train.py on NVIDIA A100 SXM4 40GB"
