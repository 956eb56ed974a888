import pytest
import torch

from advisor.measure.backends.accelerator import BACKEND


@pytest.fixture
def accelerator(monkeypatch):
    """torch.accelerator as it would answer with a device: 10 bytes live, 16 reserved, 100 free."""
    calls = []
    stats = {
        "allocated_bytes.all.current": 10,
        "allocated_bytes.all.peak": 12,
        "reserved_bytes.all.current": 16,
        "reserved_bytes.all.peak": 20,
    }
    monkeypatch.setattr(torch.accelerator, "memory_stats", lambda: stats)
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda: (100, 200))
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: calls.append("synchronize"))
    monkeypatch.setattr(torch.accelerator, "reset_peak_memory_stats", lambda: calls.append("reset"))
    return calls


def test_peaks_are_the_allocators(accelerator):
    with BACKEND.recording(step=None) as peak:
        accelerator.append("step")
    assert accelerator == ["synchronize", "reset", "step", "synchronize"]
    assert (peak.allocated_bytes, peak.reserved_bytes) == (12, 20)


def test_free_memory_includes_what_the_allocator_holds_unused(accelerator):
    assert BACKEND.free_bytes() == 106


def test_a_device_without_statistics_leaves_them_blank(accelerator, monkeypatch):
    def refuse():
        raise RuntimeError("no allocator statistics")

    monkeypatch.setattr(torch.accelerator, "memory_stats", refuse)
    monkeypatch.setattr(torch.accelerator, "get_memory_info", refuse)
    with BACKEND.recording(step=None) as peak:
        pass
    assert (peak.allocated_bytes, peak.reserved_bytes) == (None, None)
    assert BACKEND.free_bytes() is None
    assert "reset" not in accelerator
