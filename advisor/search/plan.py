"""What the search looks for and what it finds: `Goal`, `Plan`, `Candidate`, `Rejection`, `SearchResult`. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from advisor.cost.estimate import Estimate
from advisor.hardware.mesh import Mesh
from advisor.hardware.profile import ClusterProfile, DeviceProfile
from advisor.measure.result import Measurement
from advisor.options.base import Recipe, Risk

# A doubling of devices that shortens the step by less than this factor is said not to pay. Our choice.
PAYING_DOUBLING = 1.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What the job has to reach. Everything is optional; without a length the time half can't be decided."""

    global_batch_size: int  # samples per optimizer step; held
    samples: float | None = None  # to process in all (tokens / tokens_per_sample where tokens were given)
    deadline_s: float | None = None
    budget_usd: float | None = None

    @property
    def num_steps(self) -> float | None:
        return None if self.samples is None else self.samples / self.global_batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A full choice: the single-device recipe each rank runs, and how ranks are arranged."""

    recipe: Recipe
    mesh: Mesh  # Mesh() is one device
    strategy: str | None = None  # "ddp" | "zero1" | "zero2" | "fsdp2" | "hsdp"; None on one device
    reshard_after_forward: bool = True  # FSDP2 and HSDP only

    @property
    def num_devices(self) -> int:
        return self.mesh.world_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan that could be run, what it is predicted to take, and what that means for the goal."""

    plan: Plan
    estimate: Estimate
    finish_s: float | None = None  # None without a goal
    cost_usd: float | None = None  # None without a goal or a price
    samples_per_s: float | None = None
    efficiency: float | None = None  # throughput per device against the best single-device recipe
    measurement: Measurement | None = None
    variant: str | None = None  # a smaller model, not the user's


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A plan not taken, and why: memory, deadline, budget, legality, dominated."""

    plan: Plan | None
    label: str  # "FSDP2 on 16 devices", "4-bit Adam"
    reason: str
    estimate: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One line of the ladder "what was tried on one device"."""

    label: str
    option: str
    value: str
    risk: Risk
    candidate: Candidate | None  # None: not applicable here
    taken: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint:
    """One device count in the scaling table."""

    num_devices: int
    candidate: Candidate | None  # best plan at this count; None: none fits
    efficiency: float | None  # strong scaling: fixed global batch, against the smallest count that fits
    reason: str = ""  # why there is none


class VerdictKind(StrEnum):
    SINGLE_DEVICE = "single-device"
    DATA_PARALLEL = "data-parallel"
    MODEL_PARALLEL = "model-parallel"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer. `undetermined` names what is not known and the cheapest measurement that would decide it."""

    kind: VerdictKind
    undetermined: bool
    sentence: str
    margin: str  # "uses 61 % of memory; finishes in 38 % of the deadline"
    decide_by: str | None = None
    would_have_to_give: str | None = None  # infeasible: the nearest miss


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Everything the report needs from the search."""

    goal: Goal
    device: DeviceProfile
    cluster: ClusterProfile | None
    baseline: Candidate  # as it is
    single: Candidate | None  # best single-device recipe, None if none fits
    nearest_single: Candidate  # the one that comes closest to fitting
    distributed: Candidate | None
    ladder: tuple[Rung, ...]
    scaling: tuple[ScalingPoint, ...]
    rejections: tuple[Rejection, ...]
    max_micro_batch_size: int | None
    max_sequence_length: int | None
    verdict: Verdict
    pays_from_devices: int | None = None  # device count at which distribution starts to pay
    pays_until_devices: int | None = None
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """One "what if": what changes, by how much, what that does, and whether the verdict flips."""

    what: str  # "link speed"
    change: str  # "-30 %"
    effect: str  # "finishes in 4.1 days instead of 3.6 days"
    flips: bool
