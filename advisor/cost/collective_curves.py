"""Seconds of a collective against its size inside one node, from measured busbw tables.

Bandwidths follow nccl-tests (github:NVIDIA/nccl-tests doc/PERFORMANCE.md): seconds = S * f / busbw with f = 2(n-1)/n
for all_reduce, (n-1)/n for all_gather and reduce_scatter, and S the full (gathered) buffer. Tables are interpolated in
log(S), log(seconds).

A table of the same family of links serves at the size that takes the same time: a ring of n ranks sends chunks of S/n,
so S bytes on n ranks of bandwidth B behave as S * (n'/n) * (B'/B) on the n' ranks of bandwidth B' that were measured.
A link nobody measured: latency + S * f / (share of the datasheet bandwidth), called assumed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from advisor.errors import ProfileError
from advisor.hardware import catalog
from advisor.hardware.collectives import CollectiveTable
from advisor.hardware.profile import ClusterProfile, DeviceProfile

UNMEASURED_SHARE = 0.70  # of the datasheet, on a link without a table: assumed, the lowest plateau measured (MI300X)

# NCCL's LL protocol (github:NVIDIA/nccl@5067397c src/graph/tuning.cc): what a message without bytes takes. Seconds.
_BASE_LATENCY_S = 6.6e-6
_HOP_LATENCY_S = {"NVLink": 0.6e-6, "PCIe": 1.0e-6}  # other links are taken as the slower one
_NETWORK_HOP_LATENCY_S = 2.7e-6

# NVLink SHARP reduces in the switch from this many devices on (8xH200 and p6-b200, NCCL's default choice).
_NVLS_MIN_RANKS = {"NVLink4": 5, "NVLink5": 6}
_ONE_LINK_PER_PEER = "Infinity Fabric"  # a group of n devices uses n - 1 of the links: 47.7 GB/s for 2, 313 for 8
_SMALL = 2**20  # a table that starts above says nothing of latency, one that ends below nothing of bandwidth


def bus_factor(kind: str, num_ranks: int) -> float:
    """f of nccl-tests: bytes on the wire per byte of payload."""
    return (2 if kind == "all_reduce" else 1) * (num_ranks - 1) / num_ranks


@dataclass(frozen=True, slots=True)
class Group:
    kind: str
    num_ranks: int
    num_nodes: int
    per_node: int
    cluster: ClusterProfile
    device: DeviceProfile

    @property
    def link(self) -> str:
        return self.cluster.intra_node_link


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds against message size, never falling; `stretch` turns a message into the one that was measured."""

    points: tuple[tuple[float, float], ...]  # (bytes, seconds)
    source: str
    latency_s: float  # of a message without bytes
    base_s: float = 0.0  # part of it that no hop takes
    stretch: float = 1.0  # bytes measured per byte asked for
    factor: float = 1.0  # seconds asked for per second measured, `base_s` aside

    def at(self, payload_bytes: float) -> tuple[float, str]:
        measured = self._measured(payload_bytes * self.stretch)
        return self.base_s + self.factor * (measured - self.base_s), self.source

    def _measured(self, size: float) -> float:
        first, last = self.points[0], self.points[-1]
        if size <= first[0]:
            return self.latency_s + (first[1] - self.latency_s) * size / first[0]
        if size >= last[0]:
            return last[1] * size / last[0]
        index = next(i for i, point in enumerate(self.points) if point[0] >= size)
        (left, left_s), (right, right_s) = self.points[index - 1], self.points[index]
        share = math.log(size / left) / math.log(right / left)
        return math.exp(math.log(left_s) + share * (math.log(right_s) - math.log(left_s)))

    def mapped(self, points: Iterable[tuple[float, float]], note: str) -> Curve:
        return replace(self, points=tuple(points), source=f"{self.source}; {note}")


def curve_of(table: CollectiveTable) -> Curve:
    factor = bus_factor(table.collective, table.num_ranks)
    points: list[tuple[float, float]] = []
    lowest = math.inf  # a smaller message never takes longer than a larger one: noise of the small ones is dropped
    for size, rate in reversed(table.points):
        lowest = min(lowest, size * factor / rate)
        points.append((size, lowest))
    name = f"{table.algorithm} {table.collective}".strip()
    source = f"busbw table of {table.system}, {table.num_ranks} ranks, {name}: {table.source}"
    hops = _hops_s(table.collective, table.link_type, table.num_ranks, table.num_nodes)
    latency = min(_BASE_LATENCY_S + hops, points[-1][1])
    if table.points[0][0] <= _SMALL:
        latency = points[-1][1]
    return Curve(
        tuple(reversed(points)), source, latency_s=latency, base_s=max(latency - hops, min(latency, _BASE_LATENCY_S))
    )


def _hops_s(kind: str, link: str, num_ranks: int, num_nodes: int) -> float:
    """Latency of a ring's hops; at each end of a node it crosses the network."""
    per_hop = _HOP_LATENCY_S.get(_family(link), _HOP_LATENCY_S["PCIe"])
    network_hops = num_nodes - 1
    hops = (num_ranks - 1 - network_hops) * per_hop + network_hops * _NETWORK_HOP_LATENCY_S
    return (2 if kind == "all_reduce" else 1) * hops


def _family(link: str) -> str:
    """ "NVLink4" -> "NVLink"."""
    return link.rstrip("0123456789")


def _generation(link: str) -> int:
    return int(link.removeprefix(_family(link)) or 0)


def in_node(group: Group, tables: Sequence[CollectiveTable]) -> Curve:
    """The collective on `group.per_node` devices of one node."""
    bandwidth = group.cluster.intra_node_bandwidth
    if bandwidth is None:
        raise ProfileError(
            f"cluster {group.cluster.name!r} states no intra_node_bandwidth, and {group.per_node} devices of a node "
            f"communicate",
            hint="add intra_node_bandwidth to a profile of your own",
        )
    on_one_node = [t for t in tables if t.num_nodes == 1 and _family(t.link_type) == _family(group.link)]
    curves = [t for t in on_one_node if len(t.points) > 1 and t.collective in ("all_reduce", group.kind)]
    if not curves and on_one_node:
        curves = on_one_node
    if not curves:
        return _unmeasured(group, bandwidth.value)
    table = min(curves, key=lambda t: _in_node_rank(t, group))
    curve = _as_kind(curve_of(table), table, group, on_one_node)
    return _scaled(curve, table, group, bandwidth.value)


def _in_node_rank(table: CollectiveTable, group: Group) -> tuple[object, ...]:
    """Best first: the link, tables that reach down to small messages, the device, the collective, more points."""
    return (
        table.link_type != group.link,
        abs(_generation(table.link_type) - _generation(group.link)),
        table.points[0][0] > _SMALL,
        group.device.name not in table.device_names,
        table.collective != group.kind,
        abs(math.log(table.num_ranks / group.per_node)),
        -len(table.points),
    )


def _as_kind(curve: Curve, table: CollectiveTable, group: Group, on_one_node: Sequence[CollectiveTable]) -> Curve:
    """From the collective measured to the one asked for, no faster than a ring where only a ring will do."""
    in_switch = group.kind == "all_reduce" and group.per_node >= _NVLS_MIN_RANKS.get(group.link, math.inf)
    if group.kind != "all_reduce" and is_all_reduce(table):
        curve = halved(curve)
    if not in_switch and (not _is_ring(table) or curve.points[-1][0] < _SMALL):
        curve = bounded(curve, table, group, on_one_node)
    return curve


def is_all_reduce(table: CollectiveTable) -> bool:
    return table.collective == "all_reduce"


def _is_ring(table: CollectiveTable) -> bool:
    """Whether the busbw is one of the links themselves, not of a reduction in the switch."""
    return table.algorithm == "Ring" or not is_all_reduce(table) or table.link_type not in _NVLS_MIN_RANKS


def halved(curve: Curve) -> Curve:
    """all_gather or reduce_scatter from all_reduce: half of what comes on top of the smallest message."""
    least = curve.latency_s
    halved = ((size, least + (seconds - least) / 2) for size, seconds in curve.points)
    return curve.mapped(halved, "half an all_reduce")


def bounded(curve: Curve, table: CollectiveTable, group: Group, on_one_node: Sequence[CollectiveTable]) -> Curve:
    """No faster than the plateau of a ring, which is put at the end where the curve stops before it."""
    rings = [t for t in on_one_node if t.link_type == table.link_type and _is_ring(t) and t.points[-1][0] > _SMALL]
    if not rings:
        return curve

    def closeness(ring: CollectiveTable) -> tuple[object, ...]:
        return (
            group.device.name not in ring.device_names,
            is_all_reduce(ring) != (group.kind == "all_reduce"),
            abs(math.log(ring.num_ranks / min(group.num_ranks, table.num_ranks))),
            ring.points[-1][1],
        )

    ring = min(rings, key=closeness)
    size, rate = ring.points[-1]
    factor = bus_factor(group.kind, table.num_ranks)
    points = [(s, max(seconds, s * factor / rate)) for s, seconds in curve.points]
    if points[-1][0] < _SMALL < size:
        points.append((size, max(points[-1][1], size * factor / rate)))
    return curve.mapped(points, f"ring plateau {rate / 1e9:.0f} GB/s of {ring.system}: {ring.source}")


def _scaled(curve: Curve, table: CollectiveTable, group: Group, bandwidth: float) -> Curve:
    """To the group's number of ranks and its link's bandwidth (docstring, 2)."""
    measured = _link_bandwidth(table.device_names[0]) if table.device_names else None
    speed = bandwidth / measured if measured else 1.0
    if group.link == _ONE_LINK_PER_PEER:
        speed *= (group.per_node - 1) / (table.num_ranks - 1)
    if speed == 1.0 and group.per_node == table.num_ranks:
        return curve
    stretch = table.num_ranks / group.per_node / speed
    note = f"scaled to {group.per_node} ranks of {bandwidth / 1e9:.0f} GB/s"
    factor = (group.per_node - 1) / (table.num_ranks - 1)
    return replace(curve, source=f"{curve.source}; {note}", stretch=stretch, factor=factor)


@cache
def _link_bandwidth(device_name: str) -> float | None:
    """Datasheet bandwidth of the link a table of this device was measured on: between devices, else PCIe."""
    device = catalog.device(device_name)
    link = device.link_bandwidth or device.host_bandwidth
    return None if link is None else link.value


def _unmeasured(group: Group, bandwidth: float) -> Curve:
    latency = _BASE_LATENCY_S + _hops_s(group.kind, group.link, group.per_node, 1)
    size = 2.0**40
    seconds = latency + size * bus_factor(group.kind, group.per_node) / (UNMEASURED_SHARE * bandwidth)
    source = (
        f"assumed: no table of {group.link}; NCCL's latencies and {UNMEASURED_SHARE * 100:.0f} % of "
        f"{bandwidth / 1e9:.0f} GB/s"
    )
    return Curve(((size, seconds),), source, latency_s=latency)
