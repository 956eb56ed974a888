"""Seconds of a kernel on a device: datasheet x ceiling x class factor, each with its source.

    seconds = max(FLOPs / (peak x ceiling x compute share), bytes / (bandwidth x ceiling x bandwidth share)) + launch

Peaks and bandwidth are the device profile's; ceilings and shares come from profiles/calibration. A device without its
own borrows them from its architecture, then from any other, with the wider band; a dtype without a peak is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from advisor.cost.calibration import Calibration, ClassFactors, calibrations, nearest
from advisor.cost.classes import OpClass
from advisor.cost.roofline import Work
from advisor.errors import ProfileError
from advisor.hardware.profile import DeviceProfile, Sourced
from advisor.units import format_bytes_per_s, format_flops_per_s

T = TypeVar("T")

_HALF = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What one device reaches. `seconds` prices a kernel; `source_of` says where the rate of a class comes from."""

    device: DeviceProfile
    bandwidth: Sourced  # bytes/s, datasheet
    memory_ceiling: Sourced  # share of it
    ceiling: dict[str, Sourced]  # Precision -> share of the peak
    classes: dict[OpClass, ClassFactors]
    host_launch: Sourced
    kernel_launch: Sourced
    band: tuple[Sourced, Sourced]

    def seconds(self, work: Work) -> tuple[float, float]:
        """(arithmetic, bytes): the kernel takes the longer of the two, plus `kernel_launch` for each launch.

        Raises:
            ProfileError: the profile states no peak for the precision.
        """
        if work.op_class is OpClass.UNPRICED:
            return 0.0, work.num_bytes / (self.reached_bandwidth * self.slowest.value)
        factors = self.classes[work.op_class]
        memory = work.num_bytes / (self.reached_bandwidth * factors.bandwidth.value)
        if not work.flops or factors.compute is None:
            return 0.0, memory
        precision = self.precision(work.precision)
        peak = self.device.peak_flops[precision].value * self.ceiling[precision].value
        return work.flops / (peak * factors.compute.value), memory

    @property
    def reached_bandwidth(self) -> float:
        """Bytes/s of the best kernel."""
        return self.bandwidth.value * self.memory_ceiling.value

    @property
    def slowest(self) -> Sourced:
        """Bandwidth share of the slowest class: for what has no class of its own."""
        return min((factors.bandwidth for factors in self.classes.values()), key=lambda share: share.value)

    def precision(self, wanted: str) -> str:
        """The peak that applies; TF32 is plain float32 on a device without it."""
        peaks = self.device.peak_flops
        if wanted == "tf32" and wanted not in peaks:
            wanted = "float32"
        if wanted not in peaks:
            stated = ", ".join(peaks) or "none"
            raise ProfileError(
                f"{self.device.name} states no {wanted} peak, and the step multiplies in {wanted}",
                hint=f"choose another precision (stated: {stated}) or add the dense peak to a profile of your own",
            )
        return wanted

    def bandwidth_evidence(self) -> Iterator[tuple[str, str]]:
        yield self.bandwidth.source, f"bandwidth {format_bytes_per_s(self.bandwidth.value)}"
        yield self.memory_ceiling.source, f"bandwidth ceiling {self.memory_ceiling.value * 100:.1f} % of it"

    def evidence(self, op_class: OpClass, precisions: Iterable[str]) -> Iterator[tuple[str, str]]:
        """(source, what it gives) of every number behind the rate of one class."""
        factors = self.classes[op_class]
        for precision in map(self.precision, precisions):
            peak, ceiling = self.device.peak_flops[precision], self.ceiling[precision]
            yield peak.source, f"{precision} peak {format_flops_per_s(peak.value)}"
            yield ceiling.source, f"{precision} ceiling {ceiling.value * 100:.1f} % of the peak"
            if factors.compute is not None:
                yield factors.compute.source, f"{op_class} {factors.compute.value * 100:.1f} % of the ceiling"
        yield factors.bandwidth.source, f"{op_class} {factors.bandwidth.value * 100:.1f} % of the bandwidth ceiling"


def rates_for(device: DeviceProfile) -> Rates | None:
    """Rates of `device`; None where the profile states no bandwidth or no peak (it is known by its memory alone)."""
    if device.memory_bandwidth is None or not device.peak_flops:
        return None
    order = nearest(device, calibrations())
    own = device.name in order[0].devices if order else False
    classes: dict[OpClass, ClassFactors] = {}
    for calibration in reversed(order):
        classes |= calibration.classes
    host = _first(device, "host_launch", (c.host_launch for c in order))
    kernel = _first(device, "kernel_launch", (c.kernel_launch for c in order))
    bands = (c.time_band if own and device.name in c.devices else c.borrowed_band for c in order)
    return Rates(
        device=device,
        bandwidth=device.memory_bandwidth,
        memory_ceiling=_ceiling(device, "memory", order),
        ceiling={precision: _ceiling(device, precision, order) for precision in device.peak_flops},
        classes=classes,
        host_launch=host,
        kernel_launch=kernel,
        band=_first(device, "time band", bands),
    )


def _first(device: DeviceProfile, what: str, candidates: Iterable[T | None]) -> T:
    found = next((candidate for candidate in candidates if candidate is not None), None)
    if found is None:
        raise _incomplete(device, what)
    return found


def _incomplete(device: DeviceProfile, what: str) -> ProfileError:
    return ProfileError(f"no calibration gives a {what} for {device.name}", hint="profiles/calibration is incomplete")


def _ceiling(device: DeviceProfile, key: str, order: tuple[Calibration, ...]) -> Sourced:
    """This device's own share; the median of its architecture's, else of all."""
    for title, group in (
        ("", [c for c in order if device.name in c.devices]),
        (f"borrowed: median of {device.architecture}; ", [c for c in order if c.architecture == device.architecture]),
        ("borrowed: median of every device known; ", list(order)),
    ):
        if found := [share for c in group if (share := _share(c, key)) is not None]:
            sources = "; ".join(dict.fromkeys(share.source for share in found))
            return Sourced(value=median(share.value for share in found), source=title + sources)
    raise _incomplete(device, f"{key} ceiling")


def _share(calibration: Calibration, key: str) -> Sourced | None:
    """A precision nobody measured on a device is as far below its peak as the 16-bit one."""
    if key == "memory" or key in calibration.ceiling:
        return calibration.ceiling.get(key)
    share = next((calibration.ceiling[half] for half in _HALF if half in calibration.ceiling), None)
    return None if share is None else Sourced(value=share.value, source=f"{share.source} (as the 16-bit one)")
