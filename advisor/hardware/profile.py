"""Schemas of a device, a cluster and their facts. Values are SI numbers here; TOML holds strings with units.

Every value carries the name of its source. A field that is not known is `None`: never a default for unknown hardware.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Precision = Literal["float32", "tf32", "float16", "bfloat16", "float8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sourced:
    """A number and where it is from."""

    value: float
    source: str  # readable: title or URL, date
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """One accelerator as torch sees it. Peaks are dense, per device; bandwidth per device and direction."""

    name: str  # "h100-sxm5-80gb"
    title: str  # "NVIDIA H100 SXM5 80GB"
    vendor: str
    architecture: str  # "Hopper"
    device_type: Literal["cuda", "rocm", "mps", "cpu", "xpu", "hpu", "tpu"]
    reported_names: tuple[str, ...] = ()  # what torch calls it; how a device of this machine is recognised
    compute_capability: tuple[int, int] | None = None  # NVIDIA only
    # Bytes torch reports as total (smallest seen), or a lower bound whose source begins with "Assumed", or None.
    memory_capacity: Sourced | None = None
    nominal_memory: Sourced | None = None  # as the vendor prints it
    memory_bandwidth: Sourced | None = None  # bytes/s
    peak_flops: dict[str, Sourced] = field(default_factory=dict)  # Precision -> FLOP/s, dense
    l2_bytes: Sourced | None = None
    num_multiprocessors: int | None = None
    link_bandwidth: Sourced | None = None  # bytes/s per direction, device to device inside a node
    link_type: str = ""
    host_bandwidth: Sourced | None = None  # bytes/s per direction (PCIe)
    native_bfloat16: bool | None = None
    price_usd_per_hour: Sourced | None = None
    notes: tuple[str, ...] = ()

    @property
    def usable_memory_bytes(self) -> int | None:
        """Total the framework reports on this device."""
        return None if self.memory_capacity is None else int(self.memory_capacity.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterProfile:
    """Nodes of one kind, as many as the user can have, with the two network levels between devices."""

    name: str  # "dgx-h100"
    title: str
    device: str  # name of a DeviceProfile
    devices_per_node: int
    intra_node_bandwidth: Sourced | None  # bytes/s per device and direction
    intra_node_link: str  # "NVLink4"
    inter_node_bandwidth: Sourced | None  # bytes/s per NODE and direction; None: nodes can't be joined, or not known
    inter_node_network: str
    host_memory: Sourced | None = None
    price_usd_per_hour: Sourced | None = None  # per node
    notes: tuple[str, ...] = ()
