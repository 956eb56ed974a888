"""The device of this machine as a profile: its own memory, and the datasheet of the profile it is recognised by.

A device no profile describes gets measured facts only: its memory and capability, no rates. The CPU never gets rates
here; they come from a calibration.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

from advisor.errors import ProfileError
from advisor.hardware import catalog
from advisor.hardware.profile import DeviceProfile, Sourced

MEASURED = "measured on this machine"
# ECC takes up to 6.7 % of a GDDR part's memory (L40S: 44.5 or 47.7 GiB of 48); memory-modded cards and MIG slices
# are 20 % off and more.
_SAME_MEMORY = 0.10


def local_device() -> DeviceProfile:
    """The current accelerator if torch sees one, else the CPU."""
    import torch

    return _accelerator() if torch.accelerator.is_available() else cpu_device()


def cpu_device() -> DeviceProfile:
    """The CPU of this machine; its memory is what this process may use."""
    return DeviceProfile(
        name="cpu",
        title=_cpu_title(Path("/proc/cpuinfo")),
        vendor="",
        architecture=platform.machine(),
        device_type="cpu",
        memory_capacity=Sourced(value=_memory_limit(Path("/")), source=MEASURED),
        notes=(f"{_num_cpus()} CPUs for this process",),
    )


def recognise(reported_name: str, total_bytes: int) -> DeviceProfile | None:
    """The profile of a device that torch calls `reported_name`, if its memory agrees."""
    for name in catalog.device_names():
        profile = catalog.device(name)
        expected = profile.memory_capacity or profile.nominal_memory
        if reported_name in profile.reported_names and expected is not None:
            return profile if abs(total_bytes / expected.value - 1) < _SAME_MEMORY else None
    return None


def _accelerator() -> DeviceProfile:
    import torch

    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None, "called only where torch.accelerator.is_available()"
    module = torch.get_device_module(accelerator.type)
    if accelerator.type == "mps":
        reported_name, total = "Apple GPU", int(torch.mps.recommended_max_memory())
    else:
        reported_name, total = module.get_device_name(), int(torch.accelerator.get_memory_info()[1])
    memory = Sourced(value=total, source=MEASURED)
    if (profile := recognise(reported_name, total)) is not None:
        return replace(profile, memory_capacity=memory)
    is_cuda = accelerator.type == "cuda" and torch.version.hip is None
    return DeviceProfile(
        name=re.sub(r"[\s_.]+", "-", reported_name.strip().lower()),
        title=reported_name,
        vendor="NVIDIA" if is_cuda else "",
        architecture="",
        device_type="rocm" if torch.version.hip else _device_type(accelerator.type),
        reported_names=(reported_name,),
        compute_capability=module.get_device_capability() if is_cuda else None,
        memory_capacity=memory,
        num_multiprocessors=module.get_device_properties().multi_processor_count if is_cuda else None,
        notes=("No profile describes this device: memory is measured, rates are not known.",),
    )


def _device_type(accelerator: str) -> Literal["cuda", "mps", "xpu", "hpu"]:
    match accelerator:
        case "cuda" | "mps" | "xpu" | "hpu":
            return accelerator
    raise ProfileError(
        f"this machine's accelerator is of the type {accelerator!r}, which has no profile",
        hint="name a device to plan for with --device",
    )


def _cpu_title(cpuinfo: Path) -> str:
    """The model in /proc/cpuinfo; elsewhere what the platform module knows."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.processor() or f"CPU ({platform.machine()})"


def _num_cpus() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _memory_limit(root: Path) -> int:
    """Bytes of RAM this process may use: all of it, or less where a control group (version 1 or 2) says so."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    mount = root / "sys/fs/cgroup"
    for base, file, own in ((mount, "memory.max", "0::/"), (mount / "memory", "memory.limit_in_bytes", ":memory:/")):
        group = base / _own_group(root / "proc/self/cgroup", own)
        limits += [limit for folder in (group, *group.parents) if (limit := _limit(folder / file)) is not None]
    return min(limits)


def _own_group(listing: Path, prefix: str) -> str:
    """This process's control group relative to the mount: "0::/path" (version 2) or "4:memory:/path" (version 1)."""
    try:
        found = re.search(rf"^\d*{prefix}(.*)$", listing.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return ""
    return found.group(1) if found and ".." not in found.group(1) else ""


def _limit(file: Path) -> int | None:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max" is no limit
