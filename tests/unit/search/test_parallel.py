import pytest

from advisor.analysis import parse_plan
from advisor.discovery import discover
from advisor.errors import UsageError
from advisor.hardware.mesh import Mesh
from advisor.options.base import Recipe
from advisor.parallel.base import Strategy
from advisor.search.parallel import device_counts, meshes

STRATEGIES = discover("advisor.parallel", "STRATEGY", Strategy)
RECIPE = Recipe(micro_batch_size=4)


def test_counts_double_up_to_the_limit_and_include_it():
    assert device_counts(1) == []
    assert device_counts(8) == [2, 4, 8]
    assert device_counts(12) == [2, 4, 8, 12]
    assert device_counts(64) == [2, 4, 8, 16, 32, 64]


def test_meshes_of_each_strategy():
    assert list(meshes(STRATEGIES["ddp"], 8, 8)) == [(Mesh(dp_replicate=8), True)]
    assert list(meshes(STRATEGIES["zero1"], 8, 8)) == [(Mesh(dp_shard=8), True)]
    assert list(meshes(STRATEGIES["fsdp2"], 8, 8)) == [(Mesh(dp_shard=8), True), (Mesh(dp_shard=8), False)]
    assert list(meshes(STRATEGIES["hsdp"], 16, 8)) == [(Mesh(dp_replicate=2, dp_shard=8), True)]


def test_hybrid_sharding_needs_more_than_one_whole_node():
    assert list(meshes(STRATEGIES["hsdp"], 8, 8)) == []
    assert list(meshes(STRATEGIES["hsdp"], 12, 8)) == []


def test_a_plan_in_words():
    plan, strategy = parse_plan("hsdp:2x8", RECIPE, STRATEGIES)
    assert (plan.mesh, plan.num_devices, strategy.name) == (Mesh(dp_replicate=2, dp_shard=8), 16, "hsdp")


@pytest.mark.parametrize("text", ["fsdp2", "fsdp2:0", "fsdp2:2x4", "tp:8", "hsdp:8", "ddp:-2"])
def test_a_plan_that_means_nothing_is_refused(text):
    with pytest.raises(UsageError, match=r"--plan"):
        parse_plan(text, RECIPE, STRATEGIES)
