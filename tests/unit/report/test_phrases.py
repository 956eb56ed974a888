from dataclasses import replace

import pytest
from fabricated_reports import AMP, BASELINE, CHECKPOINTING, DISTRIBUTED, GOAL, SINGLE, memory, time

from advisor.hardware.mesh import Mesh
from advisor.options.base import Recipe
from advisor.report import phrases
from advisor.search.plan import Goal, Plan


def test_recipe_is_what_the_flag_takes() -> None:
    assert phrases.recipe_label(Recipe(micro_batch_size=1)) == "as it is"
    both = Recipe(micro_batch_size=1, choices=(CHECKPOINTING, AMP))
    assert phrases.recipe_label(both) == "checkpointing=every-2, precision=amp-bf16"


@pytest.mark.parametrize(
    ("strategy", "mesh", "reshard", "expected"),
    [
        (None, Mesh(), True, "one device"),
        ("ddp", Mesh(dp_replicate=8), True, "DDP on 8 devices"),
        ("zero2", Mesh(dp_shard=4), True, "ZeRO-2 on 4 devices"),
        ("hsdp", Mesh(dp_replicate=2, dp_shard=8), True, "HSDP on 16 devices (2 x 8)"),
        ("fsdp2", Mesh(dp_shard=8), False, "FSDP2 on 8 devices, no reshard after forward"),
    ],
)
def test_plan(strategy: str | None, mesh: Mesh, reshard: bool, expected: str) -> None:
    plan = Plan(recipe=Recipe(micro_batch_size=1), mesh=mesh, strategy=strategy, reshard_after_forward=reshard)
    assert phrases.plan_label(plan) == expected


def test_batch() -> None:
    assert phrases.batch_label(DISTRIBUTED) == "32 x 2 accumulated x 8 ranks"
    plain = replace(BASELINE, plan=replace(BASELINE.plan, recipe=Recipe(micro_batch_size=4)))
    assert phrases.batch_label(plain) == "4"


def test_memory_says_the_unit_once() -> None:
    assert phrases.memory(memory(33.1)) == "33.1 of 39.4 GiB"
    assert phrases.memory(replace(memory(33.1), required_bytes=600 * 1024**2)) == "600 MiB of 39.4 GiB"
    assert phrases.memory_band(memory(33.1)) == "32.1 to 35.1 GiB"


def test_step_band() -> None:
    assert phrases.step_band(time(4.1)) == "3.61 to 4.71 s"
    assert phrases.step_band(time(1.0)) == "880 ms to 1.15 s"
    assert phrases.step_band(None) == phrases.NONE
    assert phrases.step_band(replace(time(1.0), low_s=2.0, high_s=2.0)) == "2 s"


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(1249.0, "1,250/s"), (54.47, "54.5/s"), (0.5, "30/min"), (0.001, "3.6/h"), (1e-5, "0.864/day")],
)
def test_rate(rate: float, expected: str) -> None:
    assert phrases.rate_text(rate) == expected


def test_ratio_without_a_whole() -> None:
    assert phrases.ratio(1.0, 0.0) is None
    assert phrases.ratio(None, 2.0) is None
    assert phrases.ratio(1.0, 4.0) == 0.25


def test_goal() -> None:
    assert phrases.goal_label(GOAL) == "40M samples, global batch 512, within 5 days"
    assert phrases.goal_label(Goal(global_batch_size=8, budget_usd=500.0)) == "global batch 8, for at most $500"


def test_shorten_keeps_both_ends() -> None:
    assert phrases.shorten("a" * 100 + ".weight", 20) == "aaaaaaaaa…aaa.weight"
    assert phrases.shorten("short") == "short"


def test_samples_in_a_span() -> None:
    assert phrases.samples_in(SINGLE, days=7) == "75.5M samples"
