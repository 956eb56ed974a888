"""Seconds of one collective on a network of two levels, from measured tables wherever there is one.

Inside a node: `collective_curves`. Across nodes, in this order:

1. A table of the same link, number of nodes and network.
2. max(intra, inter) + (1 - rho) * min(intra, inter), where intra is the collective inside a node, inter is
   c (k-1)/k * (S/g) / (a device's share of the node's network bandwidth), c = 2 for all_reduce and 1 otherwise, k nodes
   and g ranks on each. How far the network stays below that line at which size is read from the run over more than two
   nodes with most points. The result is kept between what slower and faster networks were measured to take.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from advisor.cost.collective_curves import (
    UNMEASURED_SHARE,
    Curve,
    Group,
    bounded,
    bus_factor,
    curve_of,
    halved,
    in_node,
    is_all_reduce,
)
from advisor.errors import ProfileError
from advisor.hardware.collectives import CollectiveTable, collective_tables
from advisor.hardware.mesh import Mesh
from advisor.hardware.profile import ClusterProfile, DeviceProfile
from advisor.trace.records import StepTrace

LEVEL_OVERLAP = 0.5  # rho; 4 nodes of 8 B200 at 4 GiB: 21.2 ms, measured 22.05 ms
SLOWDOWN_IN_NODE = 1.15  # of compute under a collective: assumed, inside the 1.1 to 1.3 Galvatron measured
SLOWDOWN_ACROSS_NODES = 1.05  # assumed: the network takes fewer multiprocessors than NVLink

_BUCKET = 2**25  # a table that starts above says nothing of the messages a training step sends


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    seconds: float
    source: str  # the table, or the formula and its constants
    overlap_slowdown: float = 1.0  # factor on compute that runs at the same time


def collective_seconds(
    kind: str,
    *,
    payload_bytes: int,
    mesh: Mesh,
    axis: str,
    cluster: ClusterProfile,
    device: DeviceProfile,
    tables: Sequence[CollectiveTable] | None = None,
) -> CollectiveTime:
    """Seconds of one collective over the group along `axis`; every group of the axis communicates at the same time.

    A broadcast is priced as the all_gather of its buffer: pipelined, both are bound by the buffer over the link.

    Raises:
        ProfileError: the cluster's profile states no bandwidth for a level that the group crosses.
    """
    num_ranks = mesh.degree(axis)
    if num_ranks == 1 or payload_bytes == 0:
        return CollectiveTime(0.0, "no communication")
    per_node = mesh.ranks_per_node(axis, cluster.devices_per_node)
    num_nodes = -(-num_ranks // per_node)
    group = Group(kind, num_ranks, num_nodes, per_node, cluster, device)
    known = collective_tables() if tables is None else tables
    if num_nodes == 1:
        seconds, source = in_node(group, known).at(payload_bytes)
        return CollectiveTime(seconds, source, SLOWDOWN_IN_NODE)
    concurrent = min(cluster.devices_per_node, mesh.world_size)
    seconds, source = _across_nodes(group, payload_bytes, concurrent, known)
    return CollectiveTime(seconds, source, SLOWDOWN_ACROSS_NODES)


def price_collectives(
    trace: StepTrace,
    *,
    mesh: Mesh,
    cluster: ClusterProfile,
    device: DeviceProfile,
    tables: Sequence[CollectiveTable] | None = None,
) -> tuple[CollectiveTime, ...]:
    """One time for each of the trace's collectives."""
    known = collective_tables() if tables is None else tables
    times: dict[tuple[str, int, str], CollectiveTime] = {}
    for record in trace.collectives:
        key = (record.kind, record.payload_bytes, record.axis)
        if key not in times:
            times[key] = collective_seconds(
                record.kind,
                payload_bytes=record.payload_bytes,
                mesh=mesh,
                axis=record.axis,
                cluster=cluster,
                device=device,
                tables=known,
            )
    return tuple(times[record.kind, record.payload_bytes, record.axis] for record in trace.collectives)


def two_level_seconds(intra_s: float, inter_s: float) -> float:
    """A collective whose two levels take `intra_s` and `inter_s`, partly at the same time."""
    return max(intra_s, inter_s) + (1 - LEVEL_OVERLAP) * min(intra_s, inter_s)


def _across_nodes(
    group: Group, payload_bytes: int, concurrent: int, tables: Sequence[CollectiveTable]
) -> tuple[float, str]:
    node_bandwidth = group.cluster.inter_node_bandwidth
    if node_bandwidth is None:
        raise ProfileError(
            f"cluster {group.cluster.name!r} states no inter_node_bandwidth, and a group of {group.num_ranks} spans "
            f"{group.num_nodes} nodes",
            hint="add inter_node_bandwidth to a profile of your own, or stay inside one node",
        )
    measured = sorted(filter(lambda table: _serves(table, group), tables), key=lambda table: _across_rank(table, group))
    for table in measured:
        if table.inter_node_bytes_per_s is None and _same_network(table.network, group.cluster.inter_node_network):
            return _from_table(table, group, payload_bytes, tables)
    formula = _two_levels(group, payload_bytes, node_bandwidth.value / concurrent, tables)
    return _between(formula, node_bandwidth.value, group, payload_bytes, measured, tables)


def _two_levels(group: Group, payload_bytes: int, share: float, tables: Sequence[CollectiveTable]) -> tuple[float, str]:
    intra_s, intra_source = in_node(group, tables).at(payload_bytes) if group.per_node > 1 else (0.0, "")
    inter_s, inter_source = _inter_s(group, payload_bytes / group.per_node, share, tables)
    sources = " + ".join(filter(None, (intra_source, inter_source)))
    return two_level_seconds(intra_s, inter_s), f"two-level formula: {sources}"


def _between(
    formula: tuple[float, str],
    node_bandwidth: float,
    group: Group,
    payload_bytes: int,
    measured: Iterable[CollectiveTable],
    tables: Sequence[CollectiveTable],
) -> tuple[float, str]:
    """The formula, but no slower than on a slower network that was measured, and no faster than on a faster one."""
    by_bandwidth: dict[float, CollectiveTable] = {}
    for table in measured:
        if table.inter_node_bytes_per_s is not None:
            by_bandwidth.setdefault(table.inter_node_bytes_per_s, table)
    times = {rate: _from_table(table, group, payload_bytes, tables) for rate, table in by_bandwidth.items()}
    faster = [time for rate, time in times.items() if rate >= node_bandwidth]
    slower = [time for rate, time in times.items() if rate <= node_bandwidth]
    return min([max([formula, *faster]), *slower])


def _serves(table: CollectiveTable, group: Group) -> bool:
    """Whole nodes with this link. Two nodes stand for two only: their tree is faster than the wire.

    A ring is not scaled down from the all_reduce of many more nodes: that was a tree, with less latency per node.
    """
    is_tree = is_all_reduce(table) and group.kind != "all_reduce"
    return (
        table.num_nodes > 1
        and table.link_type == group.link
        and table.num_ranks == table.num_nodes * group.per_node
        and group.per_node == group.cluster.devices_per_node
        and (table.num_nodes == 2) == (group.num_nodes == 2)
        and table.collective in ("all_reduce", group.kind)
        and not (is_tree and table.num_nodes > 2 * group.num_nodes)
        and table.points[0][0] <= _BUCKET
    )


def _across_rank(table: CollectiveTable, group: Group) -> tuple[object, ...]:
    return (
        abs(math.log(table.num_nodes / group.num_nodes)),
        group.device.name not in table.device_names,
        not _same_network(table.network, group.cluster.inter_node_network),
        table.collective != group.kind,
        table.algorithm == "NVLSTree",  # not what NCCL takes by default on every network
        -len(table.points),
    )


def _same_network(one: str, other: str) -> bool:
    """ "InfiniBand" and "InfiniBand NDR" are one kind of network."""
    return one.split()[:1] == other.split()[:1]


def _from_table(
    table: CollectiveTable, group: Group, payload_bytes: int, tables: Sequence[CollectiveTable]
) -> tuple[float, str]:
    curve = curve_of(table)
    if group.kind != "all_reduce" and is_all_reduce(table):
        curve = bounded(halved(curve), table, group, [t for t in tables if t.num_nodes == 1])
    if table.num_nodes == group.num_nodes:
        return curve.at(payload_bytes)
    stretch = _steps(group.kind, table.num_nodes) / _steps(group.kind, group.num_nodes)
    seconds, source = replace(curve, stretch=stretch).at(payload_bytes)
    factor = bus_factor(group.kind, group.num_ranks) / bus_factor(group.kind, table.num_ranks) / stretch
    return seconds * factor, f"{source}; scaled from {table.num_nodes} to {group.num_nodes} nodes"


def _steps(kind: str, num_nodes: int) -> float:
    """What latency grows with: the depth of all_reduce's tree, the length of a ring."""
    return math.log2(num_nodes) if kind == "all_reduce" else num_nodes


def _inter_s(group: Group, device_bytes: float, share: float, tables: Sequence[CollectiveTable]) -> tuple[float, str]:
    """The network level alone: `device_bytes` per device over `share` bytes/s of each."""
    rounds = 2 if group.kind == "all_reduce" else 1
    ideal = rounds * (group.num_nodes - 1) / group.num_nodes * device_bytes / share
    reference = _network_reference(tables)
    if reference is None:
        return ideal / UNMEASURED_SHARE, f"assumed: {UNMEASURED_SHARE * 100:.0f} % of {share / 1e9:.1f} GB/s per device"
    table, inside, node_bandwidth = reference
    reference_share = node_bandwidth / inside.num_ranks
    measured = _network_curve(table, inside)
    steps = _steps(group.kind, table.num_nodes) / _steps(group.kind, group.num_nodes)
    size = device_bytes * reference_share / share * steps
    reference_ideal = 2 * (table.num_nodes - 1) / table.num_nodes * size / reference_share
    below = measured.at(size)[0] / reference_ideal
    return ideal * below, f"{share / 1e9:.1f} GB/s per device, as far below that line as {measured.source}"


def _network_reference(
    tables: Sequence[CollectiveTable],
) -> tuple[CollectiveTable, CollectiveTable, float] | None:
    """The all_reduce over more than two nodes with most points, the one inside a node of it, the node's bandwidth."""
    found = [
        (table, inside, table.inter_node_bytes_per_s)
        for table in tables
        if table.num_nodes > 2 and is_all_reduce(table) and table.inter_node_bytes_per_s is not None
        for inside in tables
        if inside.num_nodes == 1
        and inside.num_ranks * table.num_nodes == table.num_ranks
        and inside.link_type == table.link_type
        and is_all_reduce(inside)
        and len(inside.points) > 1
    ]
    return max(found, default=None, key=lambda pair: len(pair[0].points))


def _network_curve(table: CollectiveTable, inside: CollectiveTable) -> Curve:
    """Seconds of the network level against bytes per device: the two-level formula solved for it."""
    whole, intra = curve_of(table), curve_of(inside)
    hidden = 1 - LEVEL_OVERLAP
    points: list[tuple[float, float]] = []
    lowest = math.inf
    for size, seconds in reversed(whole.points):
        intra_s = intra.at(size)[0]
        inter_s = seconds - hidden * intra_s
        if inter_s < intra_s:  # then intra is the longer one
            inter_s = max(0.0, seconds - intra_s) / hidden
        lowest = min(lowest, inter_s)
        points.append((size / inside.num_ranks, lowest))
    return replace(whole, points=tuple(reversed(points)), latency_s=lowest, base_s=0.0)
