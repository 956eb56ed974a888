"""Every shipped profile: units, sources, dense peaks, physical sanity."""

import re
import tomllib
from pathlib import Path

import pytest

from advisor.cost.calibration import CalibrationFile
from advisor.hardware import catalog
from advisor.hardware.collectives import collective_tables
from advisor.hardware.profile import ClusterProfile, DeviceProfile, Sourced
from advisor.hardware.schema import ClusterFile, CollectiveFile, DeviceFile, ProfileFile, UnsupportedFile, kind_of, read

PROFILES = Path(__file__).parents[2] / "profiles"
FILES = sorted(path for kind in ("devices", "clusters", "collectives") for path in (PROFILES / kind).glob("*.toml"))
DEVICES = sorted(path.stem for path in (PROFILES / "devices").glob("*.toml"))
CLUSTERS = sorted(path.stem for path in (PROFILES / "clusters").glob("*.toml"))
ADDRESS = re.compile(
    r"(https://\S+|github:[\w.-]+/[\w.-]+(@[0-9a-f]{8} \S+)?|PyPI \S+ \S+|hmc-tech\.com|NVIDIA GTC\d+)( .+)?"
)
# Smallest share of nominal memory torch reports on an HBM part described here (V100-SXM2-16GB) and on a GDDR part (T4).
ASSUMED_SHARE = {"a10": 0.911} | dict.fromkeys(
    ("v100-sxm2-32gb", "v100-pcie-16gb", "gh200-96gb", "gh200-144gb", "b300-sxm", "mi325x", "mi355x"), 0.984
)


@pytest.fixture(autouse=True)
def only_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADVISOR_PROFILES", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def _facts(profile: DeviceProfile | ClusterProfile) -> dict[str, Sourced]:
    facts = {name: getattr(profile, name) for name in profile.__dataclass_fields__}
    if isinstance(profile, DeviceProfile):
        facts |= {f"peak_flops.{precision}": rate for precision, rate in profile.peak_flops.items()}
    return {name: fact for name, fact in facts.items() if isinstance(fact, Sourced)}


def test_how_many() -> None:
    assert len(DEVICES) == 39
    assert len(CLUSTERS) == 49
    assert len(collective_tables()) == 45


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_follows_the_rules(path: Path) -> None:
    assert re.fullmatch(r"[a-z0-9-]+", path.stem)
    file = read(path, kind_of(path))
    used = {quantity.source for _, quantity in file.quantities()}
    if isinstance(file, CollectiveFile):
        used |= {table.source for table in file.tables}
    assert used == file.sources.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_sources_can_be_looked_up(path: Path) -> None:
    for source in read(path, kind_of(path)).sources.values():
        for address in [source.address] if isinstance(source.address, str) else source.address:
            assert not address or ADDRESS.fullmatch(address)
        if source.title.startswith("List price"):
            assert source.date or "no date" in source.note


@pytest.mark.parametrize("name", DEVICES)
def test_device_is_physically_sane(name: str) -> None:
    device = catalog.device(name)
    peaks = {precision: rate.value for precision, rate in device.peak_flops.items()}
    facts = _facts(device)
    assert all(fact.source for fact in facts.values())
    halves = [peaks[precision] for precision in ("float16", "bfloat16") if precision in peaks]
    if "float32" in peaks:
        assert all(half >= peaks["float32"] for half in halves)
        assert peaks.get("tf32", peaks["float32"]) >= peaks["float32"]
    if device.vendor in ("NVIDIA", "AMD") and len(halves) == 2:
        assert halves[0] == halves[1]
    if device.vendor == "NVIDIA" and halves and "tf32" in peaks:
        assert max(halves) / peaks["tf32"] == pytest.approx(2, rel=0.02)
    if "float8" in peaks and device.vendor != "Intel":  # Gaudi 3: fp8 is no faster than bf16
        assert peaks["float8"] / max(halves) == pytest.approx(2, rel=0.03)
    if device.memory_bandwidth and halves:  # machine balance of known accelerators: tens to hundreds of FLOPs per byte
        assert 50 < max(halves) / device.memory_bandwidth.value < 500
    if device.memory_capacity and device.nominal_memory:
        assert 0.95 < device.memory_capacity.value / device.nominal_memory.value < 1.09
    if device.link_bandwidth and device.memory_bandwidth:
        assert device.link_bandwidth.value < device.memory_bandwidth.value


@pytest.mark.parametrize("name", DEVICES)
def test_device_type_and_capability_belong_together(name: str) -> None:
    device = catalog.device(name)
    assert {"NVIDIA": "cuda", "AMD": "rocm", "Apple": "mps", "Intel": "hpu", "Google": "tpu"}[
        device.vendor
    ] == device.device_type
    assert (device.compute_capability is not None) == (device.vendor == "NVIDIA")
    if device.compute_capability is not None:
        assert device.native_bfloat16 == (device.compute_capability >= (8, 0))
        assert ("bfloat16" in device.peak_flops) <= device.native_bfloat16


@pytest.mark.parametrize(
    ("name", "gib", "terabytes_per_s", "tflops"),
    [
        ("rtx-3090", 23.684, 0.936, 71),
        ("rtx-4090", 23.51, 1.008, 165.2),
        ("t4", 14.58, 0.32, 65),
        ("v100-sxm2-16gb", 15.75, 0.9, 125),
        ("a10g", 22.06, 0.6, 70),
        ("l4", 22.161, 0.3, 121),
        ("l40s", 44.52, 0.864, 362),
        ("a100-sxm4-40gb", 39.494, 1.555, 312),
        ("a100-sxm4-80gb", 79.15, 2.039, 312),
        ("h100-sxm5-80gb", 79.18, 3.35, 989),
        ("h200-sxm-141gb", 139.8, 4.8, 989),
        ("b200-sxm", 178.35, 8, 2250),
        ("mi300x", 191.98, 5.3, 1307.4),
    ],
)
def test_well_known_devices(name: str, gib: float, terabytes_per_s: float, tflops: float) -> None:
    device = catalog.device(name)
    assert device.usable_memory_bytes == round(gib * 2**30)
    assert device.memory_bandwidth is not None
    assert device.memory_bandwidth.value == pytest.approx(terabytes_per_s * 1e12)
    assert device.peak_flops["float16"].value == pytest.approx(tflops * 1e12)


@pytest.mark.parametrize("name", DEVICES)
def test_assumed_memory_says_so(name: str) -> None:
    device = catalog.device(name)
    assumed = device.memory_capacity is not None and device.memory_capacity.source.startswith("Assumed")
    assert assumed == (name in ASSUMED_SHARE)
    if assumed and device.memory_capacity and device.nominal_memory:
        nominal_gib = device.nominal_memory.value / 1e9
        assert device.memory_capacity.value <= nominal_gib * 2**30 * ASSUMED_SHARE[name]


def test_the_assumed_share_is_the_smallest_seen() -> None:
    for name, share in (("v100-sxm2-16gb", 0.984), ("t4", 0.911)):
        device = catalog.device(name)
        assert device.memory_capacity is not None
        assert device.nominal_memory is not None
        seen = device.memory_capacity.value / 2**30 / (device.nominal_memory.value / 1e9)
        assert seen == pytest.approx(share, abs=0.0005)


def test_no_two_devices_report_the_same_name() -> None:
    names = [name for device in DEVICES for name in catalog.device(device).reported_names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", CLUSTERS)
def test_cluster_is_sane(name: str) -> None:
    cluster = catalog.cluster(name)
    device = catalog.device(cluster.device)
    assert all(fact.source for fact in _facts(cluster).values())
    assert cluster.intra_node_bandwidth is not None
    if device.link_bandwidth and "bridge" not in device.link_type and not cluster.intra_node_link.startswith("PCIe"):
        assert cluster.intra_node_bandwidth.value <= device.link_bandwidth.value
    if cluster.inter_node_bandwidth:
        share = cluster.inter_node_bandwidth.value / cluster.devices_per_node
        assert share <= cluster.intra_node_bandwidth.value
    if cluster.price_usd_per_hour and device.price_usd_per_hour:  # same order: list prices differ by provider
        assert 0.2 < cluster.price_usd_per_hour.value / cluster.devices_per_node / device.price_usd_per_hour.value < 5


def test_collectives_name_known_devices() -> None:
    for table in collective_tables():
        assert set(table.device_names) <= set(DEVICES)
        assert table.num_nodes == 1 or table.network
        wire = catalog.device(table.device_names[0]).link_bandwidth
        if wire and table.num_nodes == 1 and table.algorithm == "Ring":
            assert table.points[-1][1] < wire.value


def test_unsupported_devices_have_a_reason_and_no_profile() -> None:
    for name, entry in read(PROFILES / "unsupported.toml", UnsupportedFile).devices.items():
        assert name not in DEVICES
        assert entry.reason


def test_the_examples_of_the_readme(tmp_path: Path) -> None:
    examples = re.findall(r"```toml\n(.*?)```", (PROFILES / "README.md").read_text(), re.DOTALL)
    kinds: list[type[ProfileFile]] = [DeviceFile, ClusterFile, CalibrationFile]
    assert len(examples) == len(kinds)
    for text, kind in zip(examples, kinds, strict=True):
        assert tomllib.loads(text)
        (tmp_path / "example.toml").write_text(text)
        assert isinstance(read(tmp_path / "example.toml", kind), kind)
