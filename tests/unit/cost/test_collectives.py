"""Seconds of collectives: measured tables, their scaling, the two-level formula, and what is refused."""

from dataclasses import replace

import pytest

from advisor.cost.collectives import (
    SLOWDOWN_ACROSS_NODES,
    SLOWDOWN_IN_NODE,
    bus_factor,
    collective_seconds,
    price_collectives,
    two_level_seconds,
)
from advisor.errors import ProfileError
from advisor.hardware import catalog
from advisor.hardware.collectives import CollectiveTable, collective_tables
from advisor.hardware.mesh import Mesh

MIB, GIB = 2**20, 2**30
TABLES = collective_tables()


def time(kind, payload, cluster, mesh, axis="dp_shard", tables=TABLES):
    profile = catalog.cluster(cluster) if isinstance(cluster, str) else cluster
    device = catalog.device(profile.device)
    return collective_seconds(
        kind, payload_bytes=payload, mesh=mesh, axis=axis, cluster=profile, device=device, tables=tables
    )


def busbw(kind, payload, cluster, num_ranks):
    """GB/s."""
    seconds = time(kind, payload, cluster, Mesh(dp_shard=num_ranks)).seconds
    return payload * bus_factor(kind, num_ranks) / seconds / 1e9


@pytest.mark.parametrize(
    ("kind", "factor"), [("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875), ("broadcast", 0.875)]
)
def test_bus_factor(kind, factor):
    assert bus_factor(kind, 8) == factor


def test_a_measured_point_comes_back():
    found = time("all_reduce", 4 * GIB, "dgx-a100-80gb", Mesh(dp_replicate=8), "dp_replicate")
    assert found.seconds == pytest.approx(32.137e-3, rel=1e-4)
    assert "8xA100 node" in found.source
    assert found.overlap_slowdown == SLOWDOWN_IN_NODE


@pytest.mark.parametrize(("size", "milliseconds"), [(1, 0.1019), (16, 0.2766), (256, 2.4206)])
def test_the_middle_of_a_table(size, milliseconds):
    """A line through the two ends would give 0.17, 0.17 and 2.04 ms."""
    assert time("all_reduce", size * MIB, "dgx-a100-80gb", Mesh(dp_shard=8)).seconds * 1e3 == pytest.approx(
        milliseconds, rel=0.01
    )


@pytest.mark.parametrize(
    ("payload", "formula_ms", "measured_ms"), [(4 * GIB, 21.18, 22.05), (GIB, 5.33, 5.75), (16 * GIB, 82.2, 87.2)]
)
def test_two_level_formula_on_four_nodes_of_b200(payload, formula_ms, measured_ms):
    """50 GB/s per device between nodes; what is measured comes back from the table."""
    intra = time("all_reduce", payload, "p6-b200-48xlarge", Mesh(dp_shard=8)).seconds
    inter = 2 * 3 / 4 * payload / 8 / 50e9
    assert two_level_seconds(intra, inter) * 1e3 == pytest.approx(formula_ms, rel=2e-3)
    found = time("all_reduce", payload, "p6-b200-48xlarge", Mesh(dp_shard=32))
    assert found.seconds * 1e3 == pytest.approx(measured_ms, rel=2e-3)
    assert found.overlap_slowdown == SLOWDOWN_ACROSS_NODES


@pytest.mark.parametrize(
    ("cluster", "kind", "num_ranks", "expected"),
    [
        ("dgx-h200", "all_gather", 8, 361.4),  # no NVLS for a gather
        ("dgx-b200", "reduce_scatter", 8, 682.2),
        ("dgx-h200", "all_reduce", 8, 482.3),
        ("dgx-h200", "all_reduce", 4, 363.3),  # NVLS from five devices on
        ("dgx-b200", "all_reduce", 5, 677.8),  # from six
        ("mi300x-8gpu-platform", "all_reduce", 2, 45.3),  # one link of seven: 47.7 measured
        (
            "p3-16xlarge",
            "all_reduce",
            8,
            117.4,
        ),  # NVLink2 scaled from NVLink3: 122 on a vendor slide, 110 an alarm floor
        ("dgx-a100-80gb", "all_reduce", 16, 184.0),  # 192 on a vendor slide
    ],
)
def test_plateaus(cluster, kind, num_ranks, expected):
    assert busbw(kind, 16 * GIB, cluster, num_ranks) == pytest.approx(expected, rel=0.01)


def test_one_device_per_node_shares_the_network_with_its_neighbours():
    """HSDP's replicas: eight groups of eight nodes, each device with an eighth of the node's 400 GB/s."""
    found = time("all_reduce", 4 * GIB, "dgx-h100", Mesh(dp_replicate=8, dp_shard=8), "dp_replicate")
    ideal = 2 * 7 / 8 * 4 * GIB / 50e9
    assert ideal < found.seconds < 1.1 * ideal
    assert found.source.startswith("two-level formula")


def test_a_small_message_takes_a_latency():
    assert 5e-6 < time("all_gather", 1024, "dgx-h100", Mesh(dp_shard=8)).seconds < 30e-6
    assert 1e-6 < time("all_reduce", 1024, "4x-rtx-4090-workstation", Mesh(dp_shard=4)).seconds < 30e-6


def test_a_link_nobody_measured_is_called_assumed():
    found = time("all_reduce", GIB, "gaudi2-8card-server", Mesh(dp_shard=8))
    assert found.source.startswith("assumed: no table of RoCE on die")
    assert found.seconds > GIB * 1.75 / 262.5e9


def test_without_any_table_everything_is_assumed():
    found = time("all_reduce", GIB, "dgx-h100", Mesh(dp_shard=32), tables=())
    assert found.source.count("assumed") == 2


def test_one_rank_does_not_communicate():
    assert time("all_reduce", GIB, "dgx-h100", Mesh(dp_shard=8), "dp_replicate").seconds == 0.0


@pytest.mark.parametrize(
    ("field", "mesh"), [("intra_node_bandwidth", Mesh(dp_shard=8)), ("inter_node_bandwidth", Mesh(dp_shard=16))]
)
def test_an_unknown_bandwidth_is_refused(field, mesh):
    cluster = replace(catalog.cluster("dgx-h100"), **{field: None})
    with pytest.raises(ProfileError, match=field):
        time("all_reduce", GIB, cluster, mesh)


def test_noise_of_small_messages_is_dropped():
    """A table in which 64 KiB take longer than 1 MiB: the smaller one never does."""
    table = CollectiveTable(
        system="noisy",
        device_names=("h100-sxm5-80gb",),
        link_type="NVLink4",
        network="",
        inter_node_bytes_per_s=None,
        num_ranks=8,
        num_nodes=1,
        collective="all_reduce",
        algorithm="Ring",
        points=((64 * 1024, 0.5e9), (MIB, 30e9), (GIB, 300e9)),
        source="test",
    )
    small, large = (
        time("all_reduce", size, "dgx-h100", Mesh(dp_shard=8), tables=(table,)).seconds for size in (64 * 1024, MIB)
    )
    assert small == large == pytest.approx(MIB * 1.75 / 30e9)


def test_each_collective_of_a_trace_is_priced():
    from toy_traces import toy_trace

    from advisor.parallel.hsdp import STRATEGY

    mesh = Mesh(dp_replicate=2, dp_shard=8)
    trace = STRATEGY.shard(toy_trace(), mesh)
    cluster = catalog.cluster("dgx-h100")
    times = price_collectives(trace, mesh=mesh, cluster=cluster, device=catalog.device(cluster.device), tables=TABLES)
    assert len(times) == len(trace.collectives)
    for record, found in zip(trace.collectives, times, strict=True):
        assert found == time(record.kind, record.payload_bytes, cluster, mesh, record.axis)
