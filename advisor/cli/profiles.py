"""`advisor profiles`: list, show and check hardware profiles. No torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from advisor.hardware.profile import ClusterProfile, DeviceProfile, Sourced

    Row = tuple[str, Sourced | None, Callable[[float], str]]

app = typer.Typer(no_args_is_help=True, help="List, show and check hardware profiles.")

_UNKNOWN = "-"


@app.command("list")
def list_profiles() -> None:
    """List the devices and clusters that can be planned for."""
    from advisor.hardware import catalog

    devices = [_device_row(catalog.device(name)) for name in catalog.device_names()]
    clusters = [_cluster_row(catalog.cluster(name)) for name in catalog.cluster_names()]
    lines = [
        "Devices",
        *_columns([("name", "memory", "bandwidth", "bf16/fp16 peak", "price"), *devices]),
        "",
        "Clusters",
        *_columns([("name", "device", "inside a node", "between nodes", "price"), *clusters]),
    ]
    typer.echo("\n".join(lines))


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    """Rows below each other, each column as wide as its longest text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


@app.command()
def show(name: Annotated[str, typer.Argument(help="a device, a cluster, or the path of a profile")]) -> None:
    """Show every value of one profile with its source."""
    from advisor.hardware import catalog
    from advisor.hardware.schema import ClusterFile, kind_of

    is_path = name.endswith(".toml") and Path(name).is_file()
    is_cluster = kind_of(Path(name)) is ClusterFile if is_path else catalog.is_cluster(name)
    text = _cluster_text(catalog.cluster(name)) if is_cluster else _device_text(catalog.device(name))
    typer.echo(text)


@app.command()
def check(
    paths: Annotated[list[Path] | None, typer.Argument(help="profiles to check; all that are found by default")] = None,
) -> None:
    """Check profiles against the rules; exit code 2 with every fault listed."""
    from advisor.errors import ProfileError
    from advisor.hardware import catalog

    kinds = ("devices", "clusters", "collectives")
    checked = paths or [path for kind in kinds for path in catalog.profile_files(kind)]
    faults = []
    for path in checked:
        try:
            catalog.check(path)
        except ProfileError as error:
            faults.append(error.message)
    if faults:
        raise ProfileError("\n".join(faults), hint="the rules of a profile are in profiles/README.md")
    typer.echo(f"{len(checked)} profile{'s' * (len(checked) != 1)} checked, no faults")


def _text(value: Sourced | None, form: Callable[[float], str]) -> str:
    return _UNKNOWN if value is None else form(value.value)


def _device_row(device: DeviceProfile) -> tuple[str, ...]:
    from advisor import units

    memory = _text(device.memory_capacity, units.format_bytes)
    if device.memory_capacity is None and device.nominal_memory is not None:
        memory = f"{device.nominal_memory.value / 1e9:g} GB nominal"
    half = device.peak_flops.get("bfloat16") or device.peak_flops.get("float16")
    return (
        device.name,
        memory,
        _text(device.memory_bandwidth, units.format_bytes_per_s),
        _text(half, units.format_flops_per_s),
        _text(device.price_usd_per_hour, units.format_usd_per_hour),
    )


def _cluster_row(cluster: ClusterProfile) -> tuple[str, ...]:
    from advisor import units

    return (
        cluster.name,
        f"{cluster.devices_per_node} x {cluster.device}",
        f"{_text(cluster.intra_node_bandwidth, units.format_bytes_per_s)} {cluster.intra_node_link}",
        f"{_text(cluster.inter_node_bandwidth, units.format_bytes_per_s)} {cluster.inter_node_network}",
        _text(cluster.price_usd_per_hour, units.format_usd_per_hour),
    )


def _device_text(device: DeviceProfile) -> str:
    from advisor import units

    capability = device.compute_capability
    plain = [
        ("architecture", f"{device.vendor} {device.architecture}"),
        ("device type", device.device_type),
        ("compute capability", _UNKNOWN if capability is None else f"{capability[0]}.{capability[1]}"),
        ("multiprocessors", str(device.num_multiprocessors or _UNKNOWN)),
        ("native bfloat16", {True: "yes", False: "no", None: _UNKNOWN}[device.native_bfloat16]),
        ("link", device.link_type or _UNKNOWN),
    ]
    rows: list[Row] = [
        ("memory torch reports", device.memory_capacity, units.format_bytes),
        ("nominal memory", device.nominal_memory, lambda size: f"{size / 1e9:g} GB"),
        ("memory bandwidth", device.memory_bandwidth, units.format_bytes_per_s),
        *((f"peak {name}", rate, units.format_flops_per_s) for name, rate in device.peak_flops.items()),
        ("L2 cache", device.l2_bytes, units.format_bytes),
        ("link bandwidth", device.link_bandwidth, units.format_bytes_per_s),
        ("host bandwidth", device.host_bandwidth, units.format_bytes_per_s),
        ("price", device.price_usd_per_hour, units.format_usd_per_hour),
    ]
    return _profile_text(f"{device.title} ({device.name})", plain, rows, device.notes)


def _cluster_text(cluster: ClusterProfile) -> str:
    from advisor import units

    plain = [
        ("node", f"{cluster.devices_per_node} x {cluster.device}"),
        ("link inside a node", cluster.intra_node_link or _UNKNOWN),
        ("network", cluster.inter_node_network or _UNKNOWN),
    ]
    rows: list[Row] = [
        ("per device inside", cluster.intra_node_bandwidth, units.format_bytes_per_s),
        ("per node between", cluster.inter_node_bandwidth, units.format_bytes_per_s),
        ("host memory", cluster.host_memory, units.format_bytes),
        ("price per node", cluster.price_usd_per_hour, units.format_usd_per_hour),
    ]
    return _profile_text(f"{cluster.title} ({cluster.name})", plain, rows, cluster.notes)


def _profile_text(title: str, plain: list[tuple[str, str]], rows: list[Row], notes: tuple[str, ...]) -> str:
    """Values first, each with the number of its source; then the sources, then the notes."""
    sources = list(dict.fromkeys(value.source for _, value, _ in rows if value is not None))
    lines = [title, *(f"  {label:<22}{value}" for label, value in plain)]
    for label, value, form in rows:
        if value is None:
            lines.append(f"  {label:<22}{_UNKNOWN}")
        else:
            note = f"  {value.note}" if value.note else ""
            lines.append(f"  {label:<22}{form(value.value):<14}[{sources.index(value.source) + 1}]{note}")
    lines += ["", "Sources", *(f"  [{number}] {source}" for number, source in enumerate(sources, start=1))]
    if notes:
        lines += ["", "Notes", *(f"  - {note}" for note in notes)]
    return "\n".join(lines)
