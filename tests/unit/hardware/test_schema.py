"""A profile that breaks a rule is refused with file, field, finding and advice."""

from pathlib import Path

import pytest

from advisor.errors import ProfileError
from advisor.hardware.schema import ClusterFile, CollectiveFile, DeviceFile, kind_of, read

DEVICE = """
title = "A card"
vendor = "NVIDIA"
architecture = "Hopper"
device_type = "cuda"
compute_capability = "9.0"
num_multiprocessors = { value = "132", source = "sheet" }
memory_capacity = { value = "79.18 GiB", source = "sheet", note = "smallest seen" }
memory_bandwidth = { value = "3.35 TB/s", source = "sheet" }
[peak]
tf32 = { value = "494.5 TFLOP/s", source = "sheet" }
bfloat16 = { value = "989 TFLOP/s", source = "sheet" }
float8 = { value = "1979 TFLOP/s", source = "sheet" }
[sources.sheet]
title = "Datasheet"
address = "https://example.com/sheet"
date = "2026-01-31"
"""
CLUSTER = """
title = "A node"
device = "a-card"
devices_per_node = 8
intra_node_bandwidth = { value = "450 GB/s", source = "own" }
inter_node_bandwidth = { value = "3200 Gbit/s", source = "own" }
[sources.own]
title = "Inventory"
note = "internal"
"""
COLLECTIVES = """
[sources.run]
title = "A run"
address = "https://example.com/run"
[[tables]]
system = "8 cards"
devices = ["a-card"]
link_type = "NVLink4"
num_ranks = 8
num_nodes = 1
collective = "all_reduce"
source = "run"
points = [["1 MiB", "67 GB/s"], ["1 GiB", "450 GB/s"]]
"""


def _faults(tmp_path: Path, text: str, kind=DeviceFile) -> str:
    path = tmp_path / "card.toml"
    path.write_text(text)
    with pytest.raises(ProfileError) as caught:
        read(path, kind)
    assert str(path) in caught.value.message
    assert caught.value.hint
    return caught.value.message


def test_a_device_in_si_units(tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    path.write_text(DEVICE)
    profile = read(path, DeviceFile).profile("card")
    assert profile.compute_capability == (9, 0)
    assert profile.num_multiprocessors == 132
    assert profile.usable_memory_bytes == round(79.18 * 2**30)
    assert profile.peak_flops["bfloat16"].value == 989e12
    assert profile.memory_bandwidth is not None
    assert profile.memory_bandwidth.value == 3.35e12
    assert profile.memory_bandwidth.source == "Datasheet (https://example.com/sheet), 2026-01-31"
    assert profile.price_usd_per_hour is None


def test_a_cluster_in_si_units(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(CLUSTER)
    profile = read(path, ClusterFile).profile("node")
    assert profile.inter_node_bandwidth is not None
    assert profile.inter_node_bandwidth.value == 400e9
    assert profile.inter_node_bandwidth.source == "Inventory (internal)"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"3.35 TB/s"', "3350", "memory_bandwidth.value: found the bare number 3350"),
        (
            '{ value = "3.35 TB/s", source = "sheet" }',
            "3350",
            'memory_bandwidth: found 3350; expected { value = "3.35 TB/s"',
        ),
        ('"3.35 TB/s"', '"3350"', "memory_bandwidth.value: a bandwidth is due, but '3350' is a bare number"),
        ('"989 TFLOP/s"', '"989 TB/s"', "peak.bfloat16.value: a FLOP rate is due, but '989 TB/s' is a bandwidth"),
        ('"3.35 TB/s"', '"0 TB/s"', "memory_bandwidth.value: '0 TB/s' is not above zero"),
        (
            "memory_bandwidth",
            "memory_bandwith",
            "memory_bandwith: is no key of a profile; did you mean 'memory_bandwidth'",
        ),
        ("bfloat16 =", "bf16 =", "peak.bf16: found 'bf16'"),
        ('"989 TFLOP/s", source = "sheet"', '"989 TFLOP/s"', "peak.bfloat16.source: is missing"),
        ('"3.35 TB/s", source = "sheet"', '"3.35 TB/s", source = "x"', "memory_bandwidth.source: 'x' is no entry"),
        ('vendor = "NVIDIA"\n', "", "vendor: is missing"),
        ('device_type = "cuda"', 'device_type = "gpu"', "device_type: found 'gpu'"),
        ('compute_capability = "9.0"\n', "", "compute_capability: is missing"),
        ('address = "https://example.com/sheet"\n', "", "sources.sheet: has no address"),
        ('"2026-01-31"', '"31.1.2026"', "sources.sheet.date"),
        ('"1979 TFLOP/s"', '"3958 TFLOP/s"', "peak.float8: is 4 times the 16-bit peak: looks sparse"),
        ('"989 TFLOP/s"', '"1979 TFLOP/s"', "peak: 16-bit is 4 times tf32: looks sparse"),
        ("title =", "title", "can't be read"),
    ],
)
def test_a_broken_device_is_refused(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in DEVICE
    assert expected in _faults(tmp_path, DEVICE.replace(old, new, 1))


def test_a_sheet_that_is_sparse_throughout_is_refused(tmp_path: Path) -> None:
    sparse = (
        DEVICE.replace("494.5", "989")
        .replace("1979", "3958")
        .replace('"989 TFLOP/s", source = "sheet" }\nf', '"1979 TFLOP/s", source = "sheet" }\nf')
    )
    assert "needs a clock of 3.66 GHz: looks sparse" in _faults(tmp_path, sparse)


def test_every_fault_is_named(tmp_path: Path) -> None:
    message = _faults(tmp_path, DEVICE.replace('"3.35 TB/s"', '"3350"').replace("vendor", "vendr"))
    assert "3 faults" in message
    assert "memory_bandwidth.value" in message
    assert "vendr: is no key of a profile; did you mean 'vendor'?" in message


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("devices_per_node = 8", "devices_per_node = 0", "devices_per_node"),
        ('"3200 Gbit/s"', '"3200 Gb/s"', "inter_node_bandwidth.value: a bandwidth is due, but '3200 Gb/s' is in bits"),
        ('intra_node_bandwidth = { value = "450 GB/s", source = "own" }\n', "", "intra_node_bandwidth: is missing"),
    ],
)
def test_a_broken_cluster_is_refused(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert expected in _faults(tmp_path, CLUSTER.replace(old, new, 1), ClusterFile)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("num_ranks = 8", "num_ranks = 8\nranks = 8", "is no key of a profile"),
        ("num_nodes = 1", "num_nodes = 3", "8 is no multiple of 3 nodes"),
        ('["1 MiB", "67 GB/s"]', '["2 GiB", "67 GB/s"]', "not in rising order"),
        ('"67 GB/s"', "67", "tables.0.points.0.1: found the bare number 67"),
        ('source = "run"', 'source = "walk"', "'walk' is no entry of [sources]"),
    ],
)
def test_broken_collectives_are_refused(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert expected in _faults(tmp_path, COLLECTIVES.replace(old, new, 1), CollectiveFile)


@pytest.mark.parametrize(
    ("text", "kind"), [(DEVICE, DeviceFile), (CLUSTER, ClusterFile), (COLLECTIVES, CollectiveFile)]
)
def test_the_kind_of_a_file_is_told_by_its_keys(tmp_path: Path, text: str, kind: type) -> None:
    path = tmp_path / "any.toml"
    path.write_text(text)
    assert kind_of(path) is kind
