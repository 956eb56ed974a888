"""The order of the stages: session -> search -> report. The only place that knows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from advisor.report.model import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked, after flags, files and the user's `ADVISOR` were merged. SI units."""

    device: str | None = None  # profile name or path; None: this machine's own
    device_memory_bytes: int | None = None  # a device known by its memory alone
    cluster: str | None = None
    max_devices: int = 64  # only with a cluster
    micro_batch_size: int | None = None  # None: the global batch, or the largest that fits
    global_batch_size: int | None = None  # None: the micro-batch as the file has it
    samples: float | None = None
    tokens: float | None = None
    steps: float | None = None
    deadline_s: float | None = None
    budget_usd: float | None = None
    price_usd_per_hour: float | None = None  # per device; overrides the profile's
    learning_rate: float | None = None
    fine_tune: bool = False
    choices: tuple[tuple[str, str], ...] = ()  # options the user fixed: part of "as it is"
    plan: str | None = None  # estimate only: "fsdp2:8", "hsdp:2x8", "ddp:4"
    measure: bool = True  # only where the device is this machine's own
    settings: tuple[Setting, ...] = field(default=())


Progress = Callable[[str, float | None], None]  # (what is being done, share done or None)
