"""Measured tables, against figures of their sources."""

import pytest

from advisor.hardware.collectives import CollectiveTable, collective_tables

MIB = 2**20
GIB = 2**30


def _table(system: str, **wanted: object) -> CollectiveTable:
    found = [
        table
        for table in collective_tables()
        if table.system == system and all(getattr(table, name) == value for name, value in wanted.items())
    ]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("system", "wanted", "size", "gb_per_s"),
    [
        ("8xA100 node", {}, 16 * MIB, 106.16),
        ("8xA100 node", {}, 4 * GIB, 233.88),
        ("NVIDIA 8xH100 node", {}, MIB, 67),
        ("8xH200 node", {"algorithm": "NVLS", "num_ranks": 8}, 256 * MIB, 436.15),
        ("8xH200 node", {"algorithm": "Ring", "num_ranks": 8}, 16 * GIB, 367.2),
        ("8xH200 node", {"collective": "all_gather"}, 16 * GIB, 361.4),
        ("AWS p6-b200.48xlarge", {"algorithm": "NVLS", "num_ranks": 8}, 16 * GIB, 845.67),
        ("4x AWS p6-b200.48xlarge", {}, 256 * MIB, 229.09),
        ("8xMI300X node", {"num_ranks": 8}, 256 * MIB, 305.6),
        ("8xMI300X node", {"num_ranks": 2}, 4 * GIB, 47.671),
        ("2x AWS p4de.24xlarge", {}, 2 * GIB, 78.33),
        ("2x AWS p5.48xlarge", {}, 16 * GIB, 487.09),
        ("2 nodes x 8xMI300X", {}, 8 * GIB, 354.4),
        ("2x GCP a3-highgpu-8g", {}, 512 * MIB, 70.9),
        ("2x GCP a3-megagpu-8g", {}, 8 * GIB, 188.73),
        ("2x GCP a3-ultragpu-8g", {}, 8 * GIB, 328.85),
        ("4x RTX 4090 (48 GB mod), patched P2P driver", {}, GIB, 25.95),
    ],
)
def test_published_point(system: str, wanted: dict[str, object], size: int, gb_per_s: float) -> None:
    points = dict(_table(system, **wanted).points)
    assert points[size] == pytest.approx(gb_per_s * 1e9, rel=0.005)


def test_time_of_an_all_reduce() -> None:
    """8xA100, 4 GiB: 32.14 ms as nccl-tests printed it."""
    table = _table("8xA100 node")
    factor = 2 * (table.num_ranks - 1) / table.num_ranks
    assert 4 * GIB * factor / dict(table.points)[4 * GIB] == pytest.approx(32.137e-3, rel=1e-3)


def test_what_a_table_says_of_itself() -> None:
    table = _table("2x AWS p5.48xlarge")
    assert table.device_names == ("h100-sxm5-80gb",)
    assert (table.num_nodes, table.num_ranks, table.collective) == (2, 16, "all_reduce")
    assert table.inter_node_bytes_per_s == 400e9
    assert "awsome-distributed-training" in table.source
