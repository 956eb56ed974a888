"""ZeRO-2 by `fully_shard`: gradients reduced after every micro-batch, parameters gathered once."""

import ast

import pytest
from toy_traces import assert_consistent, collective_counts, live_bytes, toy_trace

from advisor.hardware.mesh import Mesh
from advisor.parallel.zero2 import STRATEGY
from advisor.trace.records import Category


@pytest.mark.parametrize(("num_microbatches", "reduces"), [(1, (5, 215_296)), (4, (20, 861_184))])
def test_collectives(num_microbatches, reduces):
    new = STRATEGY.shard(toy_trace(num_microbatches=num_microbatches), Mesh(dp_shard=4))
    assert_consistent(new)
    assert collective_counts(new) == {"all_gather": (5, 215_296), "reduce_scatter": reduces}


def test_figure_1_of_the_zero_paper():
    """2 + (2 + 12) / 64 bytes a parameter are 16.640625 GB; here the sharded gradient has 4 bytes, not 2."""
    layers = [("fc", {"weight": (64, 117_187_500)})]
    trace = toy_trace(layers, autocast_dtype="bfloat16", activation_bytes=0, num_microbatches=2)
    new = STRATEGY.shard(trace, Mesh(dp_shard=64))
    second = next(i for i in range(new.steady_start, len(new.ops)) if new.ops[i].microbatch)
    live = live_bytes(new, second)
    assert live[Category.COMMUNICATION] == 15_000_000_000
    assert sum(live.values()) - 2 * 7_500_000_000 // 64 == 16_640_625_000


def test_parameters_stay_gathered_between_micro_batches():
    new = STRATEGY.shard(toy_trace(num_microbatches=3), Mesh(dp_shard=4))
    second = next(i for i in range(new.steady_start, len(new.ops)) if new.ops[i].microbatch)
    live = live_bytes(new, second)
    assert live[Category.COMMUNICATION] == 215_296
    assert live[Category.GRADIENT] == 215_296 // 4


def test_snippet():
    code = STRATEGY.snippet(Mesh(dp_shard=8))
    ast.parse(code)
    assert "set_reshard_after_backward(is_last)" in code
    assert "set_requires_gradient_sync" not in code


def test_illegal():
    assert STRATEGY.illegal(toy_trace(), Mesh(dp_shard=8)) is None
    assert "tp" in str(STRATEGY.illegal(toy_trace(), Mesh(dp_shard=8, tp=2)))
