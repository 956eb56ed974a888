"""Memory around the tensors: what the device has, what context and communication library take, how sure we are."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.cost.calibration import calibrations, nearest
from advisor.errors import ProfileError
from advisor.hardware.profile import DeviceProfile
from advisor.trace.records import StepTrace

# One NCCL communicator of 2 and of more ranks on A100: https://github.com/NVIDIA/nccl/issues/964.
_NCCL_BYTES = (544 * 10**6, 688 * 10**6)
# The first RCCL communicator and each further one: LUMI-AI-Guide on GitHub, thread 111.
_RCCL_FIRST_BYTES = 2**30
_RCCL_FURTHER_BYTES = int(0.65 * 2**30)


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes between two bounds, and where they come from."""

    low: int
    high: int
    source: str

    @property
    def middle(self) -> int:
        return (self.low + self.high) // 2


@dataclass(frozen=True, slots=True)
class Band:
    """Shares of a predicted figure between which the true one lies."""

    low: float
    high: float
    fits: float  # the share that has to be there for a step to be said to fit
    source: str


def usable_memory(device: DeviceProfile) -> Span:
    """What the framework reports as total."""
    if (capacity := device.memory_capacity) is None:
        raise ProfileError(
            f"{device.name} states no memory size that torch reports",
            hint="add memory_capacity to a profile of your own, or give the memory yourself",
        )
    return Span(int(capacity.value), int(capacity.value), capacity.source)


def context(device: DeviceProfile) -> Span:
    """Context of one process: published for the device, else for its architecture, else the widest range published."""
    if device.device_type == "cpu":
        return Span(0, 0, "a CPU has none")
    known = [c for c in calibrations() if c.context is not None]
    own = [c for c in known if device.name in c.devices]
    same = own or [c for c in known if c.architecture == device.architecture]
    chosen = same or known
    if not chosen:
        raise ProfileError("no calibration gives a context size", hint="profiles/calibration is incomplete")
    bounds = [bound for c in chosen for bound in c.context or ()]
    bounds.sort(key=lambda bound: bound.value)
    low, high = bounds[0], bounds[-1]
    prefix = "" if own else f"published for {device.architecture}: " if same else "widest range published: "
    return Span(int(low.value), int(high.value), prefix + "; ".join(dict.fromkeys((low.source, high.source))))


def communication(trace: StepTrace, device: DeviceProfile) -> Span:
    """Buffers of the communication library: one communicator for each mesh axis that is used."""
    communicators = len({collective.axis for collective in trace.collectives})
    if not communicators or device.device_type == "cpu":
        return Span(0, 0, "no collectives")
    if device.device_type == "rocm":
        nbytes = _RCCL_FIRST_BYTES + (communicators - 1) * _RCCL_FURTHER_BYTES
        return Span(nbytes, nbytes, "RCCL: 1 GiB, 0.65 GiB for each further communicator (LUMI-AI-Guide, thread 111)")
    low, high = (communicators * nbytes for nbytes in _NCCL_BYTES)
    return Span(low, high, "NCCL: 544 to 688 MB a communicator, measured on A100 (github.com/NVIDIA/nccl/issues/964)")


def memory_band(device: DeviceProfile) -> Band:
    """How far the memory that steps really needed lies from the prediction."""
    for calibration in nearest(device, calibrations()):
        if calibration.memory_band is not None and calibration.memory_fits is not None:
            low, high = calibration.memory_band
            return Band(low.value, high.value, calibration.memory_fits.value, high.source)
    raise ProfileError("no calibration gives a memory band", hint="profiles/calibration is incomplete")
