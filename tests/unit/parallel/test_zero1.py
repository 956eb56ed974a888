"""ZeRO-1 by `fully_shard`: one reduce-scatter and one all-gather of the model a step."""

import ast

import pytest
from toy_traces import assert_consistent, collective_counts, live_bytes, toy_trace

from advisor.hardware.mesh import Mesh
from advisor.parallel.zero1 import STRATEGY
from advisor.trace.records import Category, Phase


@pytest.mark.parametrize("num_microbatches", [1, 2, 4])
def test_collectives_do_not_grow_with_accumulation(num_microbatches):
    new = STRATEGY.shard(toy_trace(num_microbatches=num_microbatches), Mesh(dp_shard=4))
    assert_consistent(new)
    assert collective_counts(new) == {"all_gather": (5, 215_296), "reduce_scatter": (5, 215_296)}


def test_figure_1_of_the_zero_paper():
    """7.5 B parameters, 64 ranks, K = 12: 2 + 2 + 12 / 64 bytes a parameter, 31.40625 GB. (arXiv 1910.02054)"""
    layers = [("fc", {"weight": (64, 117_187_500)})]
    new = STRATEGY.shard(toy_trace(layers, autocast_dtype="bfloat16", activation_bytes=0), Mesh(dp_shard=64))
    whole = next(i for i in range(new.steady_start, len(new.ops)) if new.ops[i].name == "aten._chunk_cat.out") - 1
    live = live_bytes(new, whole)
    assert sum(live.values()) == 31_406_250_000
    assert live[Category.GRADIENT] == live[Category.COMMUNICATION] == 15_000_000_000


def test_accumulated_gradients_stay_unsharded_in_the_reduce_dtype():
    new = STRATEGY.shard(toy_trace(num_microbatches=3, autocast_dtype="bfloat16"), Mesh(dp_shard=4))
    assert_consistent(new)
    second = next(i for i in range(new.steady_start, len(new.ops)) if new.ops[i].microbatch)
    assert live_bytes(new, second)[Category.GRADIENT] == 215_296
    assert new.ops[second].phase is Phase.FORWARD


def test_snippet():
    code = STRATEGY.snippet(Mesh(dp_shard=8))
    ast.parse(code)
    assert "set_requires_gradient_sync(is_last)" in code
    assert "set_reshard_after_backward(is_last)" in code


def test_illegal():
    assert STRATEGY.illegal(toy_trace(), Mesh(dp_shard=8)) is None
    assert "dp_replicate" in str(STRATEGY.illegal(toy_trace(), Mesh(dp_replicate=8)))
