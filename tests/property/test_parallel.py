"""What must hold for any model, mesh and link."""

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_traces import assert_consistent, collective_counts, peak_bytes, storage_bytes, toy_trace

from advisor.cost.collectives import CollectiveTime, collective_seconds, price_collectives
from advisor.cost.schedule import schedule_step
from advisor.hardware import catalog
from advisor.hardware.collectives import collective_tables
from advisor.hardware.mesh import Mesh
from advisor.hardware.profile import Sourced
from advisor.parallel import ddp, fsdp2, hsdp, zero1, zero2
from advisor.trace.records import Category

TABLES = collective_tables()
CLUSTERS = [catalog.cluster(name) for name in ("dgx-a100-80gb", "dgx-h100", "p6-b200-48xlarge", "nd96isr-mi300x-v5")]

shapes = st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple)
layers = st.lists(st.lists(shapes, min_size=1, max_size=3), min_size=1, max_size=5).map(
    lambda units: [
        ("embed" if i == 0 else f"blocks.{i}.fc", {f"p{j}": shape for j, shape in enumerate(unit)})
        for i, unit in enumerate(units)
    ]
)
payloads = st.integers(1, 2**36)
kinds = st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
counts = st.sampled_from([(1, n) for n in (2, 4, 8)] + [(k, 8) for k in (2, 3, 4, 16, 64)] + [(8, 1)])


def whole(trace):
    return sum(prod(parameter.shape) * 4 for parameter in trace.parameters)


def rows(size, degree, rank):
    """Rows of dim 0 that a rank holds (torch, `Shard(0)`)."""
    chunk = -(-size // degree)
    return max(0, min(chunk, size - rank * chunk))


@settings(max_examples=40, deadline=None)
@given(layers, st.integers(2, 9))
def test_shards_add_up_to_the_parameters(model, degree):
    trace = toy_trace(model)
    busiest = storage_bytes(fsdp2.STRATEGY.shard(trace, Mesh(dp_shard=degree)), Category.PARAMETER)
    held = [
        sum(rows(p.shape[0], degree, rank) * prod(p.shape[1:]) * 4 for p in trace.parameters) for rank in range(degree)
    ]
    assert sum(held) == whole(trace)
    assert busiest == max(held) == held[0]
    assert busiest * degree >= whole(trace)


@settings(max_examples=40, deadline=None)
@given(layers, st.integers(2, 6), st.integers(1, 4), st.booleans())
def test_payloads_follow_the_parameters(model, degree, num_microbatches, reshard):
    """Padded bytes of the model: gathered twice (the root once) or once, reduced once, a micro-batch."""
    trace = toy_trace(model, num_microbatches=num_microbatches)
    padded = {p.name: -(-p.shape[0] // degree) * degree * prod(p.shape[1:]) * 4 for p in trace.parameters}
    total, root = sum(padded.values()), sum(b for name, b in padded.items() if not name.startswith("blocks."))
    new = fsdp2.STRATEGY.shard(trace, Mesh(dp_shard=degree), reshard_after_forward=reshard)
    assert_consistent(new)
    found = collective_counts(new)
    assert found["all_gather"][1] == num_microbatches * (2 * total - root if reshard else total)
    assert found["reduce_scatter"][1] == num_microbatches * total
    once = collective_counts(zero1.STRATEGY.shard(trace, Mesh(dp_shard=degree)))
    assert (once["all_gather"][1], once["reduce_scatter"][1]) == (total, total)
    gathered_once = collective_counts(zero2.STRATEGY.shard(trace, Mesh(dp_shard=degree)))
    assert (gathered_once["all_gather"][1], gathered_once["reduce_scatter"][1]) == (total, num_microbatches * total)
    replicated = collective_counts(hsdp.STRATEGY.shard(trace, Mesh(dp_shard=degree, dp_replicate=2)))
    assert replicated["all_reduce"][1] == total // degree
    assert collective_counts(ddp.STRATEGY.shard(trace, Mesh(dp_replicate=degree)))["all_reduce"][1] == whole(trace)


@settings(max_examples=25, deadline=None)
@given(layers, st.sampled_from([2, 4, 8]), st.integers(1, 3), st.sampled_from([None, "bfloat16"]))
def test_states_shrink_with_the_degree_and_resharding_saves(model, degree, num_microbatches, autocast_dtype):
    trace = toy_trace(model, num_microbatches=num_microbatches, autocast_dtype=autocast_dtype)
    states = (Category.PARAMETER, Category.OPTIMIZER_STATE)
    small, large = (storage_bytes(fsdp2.STRATEGY.shard(trace, Mesh(dp_shard=n)), *states) for n in (degree, 2 * degree))
    assert large <= small <= storage_bytes(trace, *states)
    kept, resharded = (
        peak_bytes(fsdp2.STRATEGY.shard(trace, Mesh(dp_shard=degree), reshard_after_forward=r)) for r in (False, True)
    )
    largest = max(sum(prod(p.shape) for p in trace.parameters), 1) * 4 * degree
    assert resharded <= kept + 2 * largest  # a second gather buffer in backward, never more


def seconds(kind, payload, cluster, count):
    num_nodes, per_node = count
    mesh = Mesh(dp_replicate=8, dp_shard=8) if per_node == 1 else Mesh(dp_replicate=num_nodes * per_node)
    device = catalog.device(cluster.device)
    return collective_seconds(
        kind, payload_bytes=payload, mesh=mesh, axis="dp_replicate", cluster=cluster, device=device, tables=TABLES
    ).seconds


@settings(max_examples=150, deadline=None)
@given(kinds, payloads, st.sampled_from(CLUSTERS), counts, st.floats(0.1, 10.0), st.floats(0.1, 10.0))
def test_a_faster_link_is_never_slower(kind, payload, cluster, count, intra, inter):
    def with_links(factor_in, factor_out):
        scaled = (
            Sourced(value=bandwidth.value * factor, source="test")
            for bandwidth, factor in (
                (cluster.intra_node_bandwidth, factor_in),
                (cluster.inter_node_bandwidth, factor_out),
            )
        )
        inside, outside = scaled
        return replace(cluster, intra_node_bandwidth=inside, inter_node_bandwidth=outside)

    slow = seconds(kind, payload, with_links(intra, inter), count)
    assert seconds(kind, payload, with_links(intra * 1.3, inter), count) <= slow * (1 + 1e-9)
    assert seconds(kind, payload, with_links(intra, inter * 1.3), count) <= slow * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(kinds, payloads, st.sampled_from(CLUSTERS), counts)
def test_a_larger_message_is_never_faster(kind, payload, cluster, count):
    assert seconds(kind, payload, cluster, count) <= seconds(kind, payload + payload // 3 + 1, cluster, count) * (
        1 + 1e-9
    )


@settings(max_examples=100, deadline=None)
@given(st.integers(2**24, 2**36), st.sampled_from(CLUSTERS), counts)
def test_all_reduce_is_about_reduce_scatter_and_all_gather(payload, cluster, count):
    """Equal on a ring; a reduction in the switch (480 against 361 GB/s) or a tree is faster, the more so the more nodes
    (a ring's latency grows with its length, a tree's with the logarithm)."""
    both = seconds("reduce_scatter", payload, cluster, count) + seconds("all_gather", payload, cluster, count)
    whole_s = seconds("all_reduce", payload, cluster, count)
    assert whole_s <= 1.6 * both
    if count[0] <= 4:
        assert whole_s >= 0.5 * both


@settings(max_examples=30, deadline=None)
@given(layers, st.lists(st.floats(0.0, 5.0), min_size=1, max_size=9), st.integers(1, 6), st.floats(1.0, 1.5))
def test_a_step_is_between_its_parts_and_their_sum(model, durations, num_microbatches, slowdown):
    trace = fsdp2.STRATEGY.shard(toy_trace(model, num_microbatches=num_microbatches), Mesh(dp_shard=4))
    ops = [durations[i % len(durations)] for i in range(len(trace.steady_ops()))]
    times = [CollectiveTime(durations[-1 - i % len(durations)], "test") for i in range(len(trace.collectives))]
    found = schedule_step(trace, op_seconds=ops, collectives=times, overlap_slowdown=slowdown)
    (busy,) = (seconds for _, seconds in found.stream_busy_s)
    assert max(found.compute_s, busy) <= found.step_s * (1 + 1e-9) + 1e-9
    assert found.step_s <= found.compute_s * slowdown + busy + 1e-9
    assert found.exposed_communication_s == pytest.approx(found.step_s - found.compute_s)


def test_a_faster_cluster_never_lengthens_the_step():
    trace = fsdp2.STRATEGY.shard(toy_trace(num_microbatches=3), Mesh(dp_shard=16))
    steps = []
    for factor in (0.5, 1.0, 2.0, 4.0):
        cluster = CLUSTERS[1]
        assert cluster.inter_node_bandwidth is not None
        faster = replace(
            cluster, inter_node_bandwidth=Sourced(value=cluster.inter_node_bandwidth.value * factor, source="test")
        )
        device = catalog.device(cluster.device)
        times = price_collectives(trace, mesh=Mesh(dp_shard=16), cluster=faster, device=device, tables=TABLES)
        ops = [1e-5] * len(trace.steady_ops())
        steps.append(schedule_step(trace, op_seconds=ops, collectives=times).step_s)
    assert steps == sorted(steps, reverse=True)
