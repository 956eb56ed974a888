"""Measured collectives: bus bandwidth against message size, as published for one system each.

Message size S and bus bandwidth follow nccl-tests (doc/PERFORMANCE.md): time = S * f / busbw, with f = 2(n-1)/n for
all_reduce and (n-1)/n for all_gather, reduce_scatter (S is the full, gathered buffer) and all_to_all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from advisor import units
from advisor.hardware.catalog import profile_files
from advisor.hardware.schema import CollectiveEntry, CollectiveFile, Source, read


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTable:
    """One collective on one system. A single point is a plateau: good for large messages only."""

    system: str  # "2x AWS p5.48xlarge"
    device_names: tuple[str, ...]  # profiles it was measured on, or that share device and link
    link_type: str  # inside a node: "NVLink4"
    network: str  # between nodes: "EFA v2"; "" on one node
    inter_node_bytes_per_s: float | None  # per node and direction, where stated
    num_ranks: int
    num_nodes: int
    collective: str  # "all_reduce" | "all_gather" | "reduce_scatter" | ...
    algorithm: str  # "Ring", "NVLS", "NVLSTree"; "" where not stated
    points: tuple[tuple[int, float], ...]  # (message bytes, bus bandwidth in bytes/s), smallest message first
    source: str
    note: str = ""  # how it was measured, and what to mind


def collective_tables() -> tuple[CollectiveTable, ...]:
    """Every table known: the user's own first, then the shipped ones, in the order of the files."""
    paths = profile_files("collectives")
    return tuple(table for path in paths for table in _load(path.resolve(), path.stat().st_mtime_ns))


@lru_cache(maxsize=64)
def _load(path: Path, modified_ns: int) -> tuple[CollectiveTable, ...]:
    """Once for each state of a file: a search prices hundreds of plans."""
    file = read(path, CollectiveFile)
    return tuple(_table(entry, file.sources) for entry in file.tables)


def _table(entry: CollectiveEntry, sources: dict[str, Source]) -> CollectiveTable:
    return CollectiveTable(
        system=entry.system,
        device_names=tuple(entry.devices),
        link_type=entry.link_type,
        network=entry.network,
        inter_node_bytes_per_s=None if entry.inter_node_bandwidth is None else entry.inter_node_bandwidth.number,
        num_ranks=entry.num_ranks,
        num_nodes=entry.num_nodes,
        collective=entry.collective,
        algorithm=entry.algorithm,
        points=tuple((units.parse_bytes(size), units.parse_bytes_per_s(rate)) for size, rate in entry.points),
        source=sources[entry.source].text(),
        note=entry.note,
    )
