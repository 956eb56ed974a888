"""What devices were seen to reach: fractions of the datasheet, launch costs, context. profiles/calibration/NAME.toml.

Datasheets stay in profiles/devices. A calibration says how much of them a kernel gets, in two steps: a *ceiling* is
what the best shape reaches on this device (published measurements), a *class factor* what a class of operators reaches
of the ceiling in real steps (a fit). A device without its own borrows; `rates.py` and `surroundings.py` say from whom.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from advisor import units
from advisor.cost.classes import OpClass
from advisor.errors import UsageError
from advisor.hardware.catalog import profile_files
from advisor.hardware.profile import DeviceProfile, Precision, Sourced
from advisor.hardware.schema import Fault, Memory, ProfileFile, Quantity, read

_PAIRS = (
    ("time_low", "time_high"),
    ("borrowed_low", "borrowed_high"),
    ("memory_low", "memory_high"),
    ("context", "context_highest"),
)


class Share(Quantity):
    """A fraction, written in percent; above 100 where a device clocks beyond its datasheet."""

    example = "86.9 %"

    @staticmethod
    def parse(text: str) -> float:
        number, _, unit = text.strip().rpartition(" ")
        if unit != "%":
            raise UsageError(f"a share is due, but {text!r} has no percent sign", hint="write a share such as '86.9 %'")
        try:
            return float(number) / 100
        except ValueError:
            raise UsageError(f"{text!r} is no number of percent", hint="write a share such as '86.9 %'") from None


class Duration(Quantity):
    example = "7 us"

    @staticmethod
    def parse(text: str) -> float:
        return units.parse_seconds(text)


class ClassEntry(BaseModel):
    """What a class of operators reaches of the ceilings; `compute` only where a class is counted by FLOPs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    compute: Share | None = None
    bandwidth: Share


class CalibrationFile(ProfileFile):
    """profiles/calibration/NAME.toml."""

    title: str
    devices: list[str] = Field(min_length=1)  # names of device profiles it was taken on
    architecture: str  # theirs; devices of the same one borrow from it
    ceiling: dict[Precision | Literal["memory"], Share] = Field(default_factory=dict)
    classes: dict[Annotated[OpClass, Field(strict=False)], ClassEntry] = Field(default_factory=dict)
    host_launch: Duration | None = None  # what an operator costs the host
    kernel_launch: Duration | None = None  # what a kernel costs the device on top of its work
    time_low: Share | None = None  # 80 % of steps took between these shares of the prediction
    time_high: Share | None = None
    borrowed_low: Share | None = None  # the same for devices that borrow the class factors
    borrowed_high: Share | None = None
    context: Memory | None = None  # of the process, outside the allocator
    context_highest: Memory | None = None
    memory_low: Share | None = None  # what steps really needed lies between these shares of the prediction
    memory_high: Share | None = None
    memory_fits: Share | None = None  # where this share of the prediction is there, a step is said to fit
    notes: list[str] = Field(default_factory=list)

    def quantities(self) -> Iterator[tuple[str, Quantity]]:
        yield from super().quantities()
        for name, entry in self.classes.items():
            yield f"classes.{name}.bandwidth", entry.bandwidth
            if entry.compute is not None:
                yield f"classes.{name}.compute", entry.compute

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        for low, high in _PAIRS:
            if (getattr(self, low) is None) != (getattr(self, high) is None):
                yield Fault(low, f"and {high} belong together; give both or none")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFactors:
    compute: Sourced | None
    bandwidth: Sourced


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One file of profiles/calibration. Shares are fractions of one."""

    name: str
    devices: tuple[str, ...]
    architecture: str
    ceiling: dict[str, Sourced]  # Precision or "memory" -> share of the datasheet
    classes: dict[OpClass, ClassFactors]
    host_launch: Sourced | None  # seconds
    kernel_launch: Sourced | None
    time_band: tuple[Sourced, Sourced] | None
    borrowed_band: tuple[Sourced, Sourced] | None
    context: tuple[Sourced, Sourced] | None  # bytes
    memory_band: tuple[Sourced, Sourced] | None
    memory_fits: Sourced | None


def calibrations() -> tuple[Calibration, ...]:
    """Every calibration found; a user's file replaces the shipped one of the same name."""
    found: dict[str, Calibration] = {}
    for path in profile_files("calibration"):
        if path.stem not in found:
            found[path.stem] = _load(path.resolve(), path.stat().st_mtime_ns)
    return tuple(found[name] for name in sorted(found))


def nearest(device: DeviceProfile, known: tuple[Calibration, ...]) -> tuple[Calibration, ...]:
    """`known` ordered by how near they are: taken on this device, on its architecture, on any other."""

    def distance(calibration: Calibration) -> int:
        if device.name in calibration.devices:
            return 0
        return 1 if device.architecture == calibration.architecture else 2

    return tuple(sorted(known, key=distance))


@lru_cache(maxsize=256)
def _load(path: Path, modified_ns: int) -> Calibration:
    """Once for each state of a file: a search prices hundreds of steps."""
    file = read(path, CalibrationFile)

    def fact(quantity: Quantity | None) -> Sourced | None:
        return None if quantity is None else quantity.sourced(file.sources)

    def pair(low: Quantity | None, high: Quantity | None) -> tuple[Sourced, Sourced] | None:
        return None if low is None or high is None else (low.sourced(file.sources), high.sourced(file.sources))

    return Calibration(
        name=path.stem,
        devices=tuple(file.devices),
        architecture=file.architecture,
        ceiling={key: share.sourced(file.sources) for key, share in file.ceiling.items()},
        classes={
            op_class: ClassFactors(compute=fact(entry.compute), bandwidth=entry.bandwidth.sourced(file.sources))
            for op_class, entry in file.classes.items()
        },
        host_launch=fact(file.host_launch),
        kernel_launch=fact(file.kernel_launch),
        time_band=pair(file.time_low, file.time_high),
        borrowed_band=pair(file.borrowed_low, file.borrowed_high),
        context=pair(file.context, file.context_highest),
        memory_band=pair(file.memory_low, file.memory_high),
        memory_fits=fact(file.memory_fits),
    )
