"""What a step is predicted to take: `Estimate` = `MemoryEstimate` + `TimeEstimate`. Plain frozen data, SI units."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from advisor.trace.category import Category
from advisor.workload.spec import Phase


class Provenance(StrEnum):
    """The three labels; every number on a page carries one of them."""

    MEASURED = "measured"
    PREDICTED = "predicted"
    ASSUMED = "assumed"


class FitVerdict(StrEnum):
    FITS = "fits"
    DOES_NOT_FIT = "does-not-fit"
    UNDETERMINED = "undetermined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A moment of the step at which allocated memory is (locally) highest."""

    allocated_bytes: int
    phase: Phase
    operator: str
    module: str
    first_step: bool
    by_category: tuple[tuple[Category, int], ...]  # largest first; adds up to allocated_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Allocated, reserved, required and usable bytes of one rank (words as in the README)."""

    allocated_peak_bytes: int
    reserved_peak_bytes: int  # what max_memory_reserved would show on this device
    releasable_bytes: int  # part of it in unused segments, which the allocator gives back before it runs out
    context_bytes: int
    workspace_bytes: int  # that must be there outside the live tensors; cuBLAS is inside `allocated`
    communication_bytes: int  # NCCL's own buffers
    required_bytes: int  # reserved - releasable + context + workspace + communication
    low_bytes: int  # the band around required_bytes
    high_bytes: int
    usable_bytes: int
    fits: bool  # the decision, on the safe side
    verdict: FitVerdict
    peak: Peak
    next_peak: Peak | None
    first_step_peak: Peak
    by_module: tuple[tuple[str, int], ...]  # activations held at the peak, by module, largest first
    host_bytes: int = 0  # offloaded
    sources: tuple[str, ...] = ()  # where context, workspace, band come from


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTime:
    """One line of "where the step goes"."""

    op_class: str  # "matmul", "convolution", "attention", "normalisation", "pointwise", ...
    seconds: float
    num_kernels: int
    flops: int
    num_bytes: int
    bound: str  # "compute" | "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpricedOperator:
    name: str
    count: int
    bound_seconds: float  # upper bound from the bytes it moves
    module: str  # the first one met in


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeEstimate:
    """Seconds of one optimizer step on one rank; the parts add up to `step_s`."""

    step_s: float
    low_s: float  # 80 % band
    high_s: float
    compute_s: float  # kernels bound by arithmetic
    memory_bound_s: float  # kernels bound by bytes
    launch_bound_s: float  # the device waiting for the host
    exposed_communication_s: float = 0.0
    bubble_s: float = 0.0
    offload_s: float = 0.0  # exposed host transfers and host optimizer
    model_flops: int = 0  # without recomputation
    hardware_flops: int = 0  # with it
    mfu: float | None = None  # None where the profile states no peak for the dtype
    hfu: float | None = None
    by_class: tuple[OperatorTime, ...] = ()
    unpriced: tuple[UnpricedOperator, ...] = ()
    sources: tuple[str, ...] = ()  # every rate used, with its source


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    memory: MemoryEstimate
    time: TimeEstimate | None  # None: a device known by its memory alone
    num_devices: int = 1
    notes: tuple[str, ...] = field(default=())
