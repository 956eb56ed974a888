import sys

import pytest

from advisor.measure import process_memory


def test_reads_the_kernels_fields(tmp_path):
    (tmp_path / "status").write_text("Name:\tpython\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n")
    assert process_memory.peak_resident_bytes(process=tmp_path) == 2 * 1024**2
    assert process_memory.resident_bytes(process=tmp_path) == 1024**2


def test_resetting_the_peak_writes_five(tmp_path):
    process_memory.reset_peak(process=tmp_path)
    assert (tmp_path / "clear_refs").read_text() == "5"


def test_another_system_says_nothing(tmp_path):
    missing = tmp_path / "missing"
    assert process_memory.resident_bytes(process=missing) is None
    assert process_memory.available_bytes(meminfo=missing) is None
    process_memory.reset_peak(process=missing)


def test_available_memory(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal:       24000000 kB\nMemAvailable:   16000000 kB\n")
    assert process_memory.available_bytes(meminfo=tmp_path / "meminfo") == 16_000_000 * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads the Linux kernel's own counters")
def test_this_process():
    assert process_memory.peak_resident_bytes() >= process_memory.resident_bytes() > 1024**2
