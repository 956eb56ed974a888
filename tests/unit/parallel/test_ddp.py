"""DDP: buckets in the order in which gradients get ready, all-reduced while backward goes on."""

import ast
from dataclasses import replace

import pytest
from toy_traces import assert_consistent, collective_counts, live_bytes, storage_bytes, toy_layers, toy_trace

from advisor.hardware.mesh import Mesh
from advisor.parallel.ddp import STRATEGY, replicate
from advisor.trace.records import Category, MemoryEvent, ModuleRecord, Phase, StorageRecord

MESH = Mesh(dp_replicate=4)
CAP = 52_428  # bucket_cap_mb=0.05


@pytest.mark.parametrize("num_microbatches", [1, 4])
def test_buckets_of_torch(num_microbatches):
    """torch 2.13, gloo: a bucket is closed by the parameter that makes it reach the cap."""
    new = replicate(toy_trace(num_microbatches=num_microbatches), first_bucket_bytes=CAP, bucket_bytes=CAP)
    assert_consistent(new)
    assert [c.payload_bytes for c in new.collectives] == [53_760, 53_760, 66_304, 41_472]
    assert collective_counts(new) == {"all_reduce": (4, 215_296)}


def test_the_first_bucket_is_smaller():
    width = 1024
    layers = [(f"fc{i}", {"weight": (width, width)}) for i in range(16)]
    new = STRATEGY.shard(toy_trace(layers), MESH)
    assert [c.payload_bytes // (4 * width**2) for c in new.collectives] == [1, 7, 7, 1]


def test_a_bucket_starts_when_it_is_full_and_the_optimizer_waits():
    new = replicate(toy_trace(num_microbatches=4), first_bucket_bytes=CAP, bucket_bytes=CAP)
    issued = [c.issue_position for c in new.collectives]
    assert issued == sorted(issued)
    assert all(new.ops[p - 1].name == "aten.add_.Tensor" and new.ops[p - 1].microbatch == 1 for p in issued)
    (wait,) = {c.wait_position for c in new.collectives}
    assert new.ops[wait].phase is Phase.OPTIMIZER


@pytest.mark.parametrize("num_microbatches", [1, 2])
def test_gradients_live_in_the_buckets_for_good(num_microbatches):
    trace = toy_trace(num_microbatches=num_microbatches)
    new = STRATEGY.shard(trace, MESH)
    assert live_bytes(trace, trace.steady_start)[Category.GRADIENT] == 0
    assert live_bytes(new, new.steady_start)[Category.GRADIENT] == 215_296
    optimizer = next(i for i in range(new.steady_start, len(new.ops)) if new.ops[i].phase is Phase.OPTIMIZER)
    assert live_bytes(new, optimizer)[Category.GRADIENT] == 215_296


def test_figure_1_of_the_zero_paper():
    """Without ZeRO: 16 bytes a parameter, 120 GB for 7.5 B."""
    new = STRATEGY.shard(toy_trace([("fc", {"weight": (64, 117_187_500)})], activation_bytes=0), MESH)
    optimizer = next(i for i in range(new.steady_start, len(new.ops)) if new.ops[i].phase is Phase.OPTIMIZER)
    live = live_bytes(new, optimizer)
    states = live[Category.PARAMETER] + live[Category.GRADIENT] + live[Category.OPTIMIZER_STATE]
    assert states == 120_000_000_000


def test_nothing_else_changes():
    trace = toy_trace()
    new = STRATEGY.shard(trace, MESH)
    for category in (Category.PARAMETER, Category.OPTIMIZER_STATE, Category.ACTIVATION):
        assert storage_bytes(new, category) == storage_bytes(trace, category)
    assert new.flops_per_step() == trace.flops_per_step()


def test_buffers_are_broadcast_once_a_step():
    trace = toy_trace()
    buffer = StorageRecord(4096, Category.BUFFER, "norm", True)
    trace = replace(
        trace,
        storages=(*trace.storages, buffer),
        events=(MemoryEvent(0, len(trace.storages), True), *trace.events),
        modules=(ModuleRecord("norm", "BatchNorm2d", 0),),
    )
    new = STRATEGY.shard(trace, MESH)
    assert collective_counts(new)["broadcast"] == (1, 4096)
    assert any("BatchNorm2d" in note for note in new.notes)


def test_frozen_and_unused_parameters():
    trace = toy_trace(toy_layers(num_blocks=1), frozen=("embed.weight",))
    new = STRATEGY.shard(trace, MESH)
    assert collective_counts(new)["all_reduce"] == (1, 16_640 + 49_664 - 8_192)
    unused = replace(trace, parameters=tuple(replace(p, requires_grad=True) for p in trace.parameters))
    new = STRATEGY.shard(unused, MESH)
    assert collective_counts(new)["all_reduce"] == (1, 16_640 + 49_664)
    assert any("find_unused_parameters" in note and "embed.weight" in note for note in new.notes)


def test_illegal():
    assert STRATEGY.illegal(toy_trace(), MESH) is None
    assert "dp_shard" in str(STRATEGY.illegal(toy_trace(), Mesh(dp_replicate=2, dp_shard=2)))
    stepped = toy_trace()
    no_gradients = tuple(replace(s, category=Category.TEMPORARY) for s in stepped.storages)
    assert "inside backward" in str(STRATEGY.illegal(replace(stepped, storages=no_gradients), MESH))


def test_snippet():
    code = STRATEGY.snippet(MESH)
    ast.parse(code)
    assert "gradient_as_bucket_view=True" in code
