"""The device of this machine: recognised by name and memory, never by name alone; rates never guessed."""

from pathlib import Path

import pytest

from advisor.hardware import detect

GIB = 2**30


@pytest.mark.parametrize(
    ("reported", "gib", "expected"),
    [
        ("NVIDIA H200", 139.8, "h200-sxm-141gb"),
        ("NVIDIA A100-SXM4-80GB", 79.15, "a100-sxm4-80gb"),
        ("Tesla T4", 14.75, "t4"),
        ("NVIDIA L40S", 47.7, "l40s"),  # ECC off
        ("NVIDIA GeForce RTX 4090", 47.5, None),  # memory-modded
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9.75, None),
        ("NVIDIA GeForce GTX 1080", 8, None),
    ],
)
def test_recognised_by_name_and_memory(reported: str, gib: float, expected: str | None) -> None:
    profile = detect.recognise(reported, round(gib * GIB))
    assert (profile.name if profile else None) == expected


def test_the_cpu_has_no_rates() -> None:
    profile = detect.cpu_device()
    assert profile.device_type == profile.name == "cpu"
    assert profile.title
    assert profile.memory_capacity is not None
    assert profile.memory_capacity.source == "measured on this machine"
    assert profile.memory_capacity.value > 0
    assert profile.memory_bandwidth is None
    assert profile.peak_flops == {}


def test_the_local_device() -> None:
    profile = detect.local_device()
    assert profile.memory_capacity is not None
    assert profile.memory_capacity.source == "measured on this machine"


def _root(tmp_path: Path, listing: str, limits: dict[str, str]) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(listing)
    for name, text in limits.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("listing", "limits", "expected"),
    [
        ("0::/\n", {"memory.max": "1048576\n"}, 1048576),
        ("0::/a/b\n", {"a/memory.max": "2097152\n", "a/b/memory.max": "max\n"}, 2097152),
        ("4:memory:/job\n0::/\n", {"memory/job/memory.limit_in_bytes": "4194304\n"}, 4194304),
        ("4:memory:/not/here\n", {"memory/memory.limit_in_bytes": "8388608\n"}, 8388608),
    ],
)
def test_a_control_group_limits_memory(tmp_path: Path, listing: str, limits: dict[str, str], expected: int) -> None:
    assert detect._memory_limit(_root(tmp_path, listing, limits)) == expected


def test_without_a_limit_all_memory_counts(tmp_path: Path) -> None:
    unlimited = detect._memory_limit(_root(tmp_path, "0::/\n", {"memory.max": "max\n"}))
    assert unlimited == detect._memory_limit(tmp_path / "nowhere") > 2**20


def test_the_cpus_name(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\n")
    assert detect._cpu_title(tmp_path / "cpuinfo") == "Some CPU @ 2.00GHz"
    assert detect._cpu_title(tmp_path / "nowhere")
