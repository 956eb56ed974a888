"""HSDP: FSDP2 inside a shard group, all-reduce of the shards over the replicas."""

import ast

import pytest
from toy_traces import assert_consistent, collective_counts, peak_bytes, toy_trace

from advisor.hardware.mesh import Mesh
from advisor.parallel import fsdp2
from advisor.parallel.hsdp import STRATEGY

MESH = Mesh(dp_replicate=2, dp_shard=2)


@pytest.mark.parametrize(
    ("num_microbatches", "gathers", "reduces"), [(1, (9, 413_952), (5, 215_296)), (4, (36, 1_655_808), (20, 861_184))]
)
def test_collectives(num_microbatches, gathers, reduces):
    """Measured on 4 gloo ranks, 2 x 2; with accumulation the all-reduce runs in the last micro-batch only."""
    new = STRATEGY.shard(toy_trace(num_microbatches=num_microbatches), MESH)
    assert_consistent(new)
    assert collective_counts(new) == {"all_gather": gathers, "reduce_scatter": reduces, "all_reduce": (5, 107_648)}


def test_an_all_reduce_follows_its_reduce_scatter_on_a_stream_of_its_own():
    new = STRATEGY.shard(toy_trace(), MESH)
    for record in new.collectives:
        if record.kind == "all_reduce":
            before = new.collectives[record.after]
            assert (before.kind, before.unit) == ("reduce_scatter", record.unit)
            assert record.axis == record.stream == "dp_replicate"
            assert record.microbatch == 0


def test_memory_is_that_of_the_shard_group():
    trace = toy_trace()
    assert peak_bytes(STRATEGY.shard(trace, MESH)) == peak_bytes(fsdp2.STRATEGY.shard(trace, Mesh(dp_shard=2)))


@pytest.mark.parametrize("mesh", [Mesh(dp_replicate=4), Mesh(dp_shard=4), Mesh(dp_replicate=2, dp_shard=2, tp=2)])
def test_illegal(mesh):
    assert STRATEGY.illegal(toy_trace(), mesh)


def test_snippet():
    code = STRATEGY.snippet(Mesh(dp_replicate=4, dp_shard=8))
    ast.parse(code)
    assert '(4, 8,), mesh_dim_names=("dp_replicate", "dp_shard",)' in code
    assert "set_requires_all_reduce(is_last)" in code
