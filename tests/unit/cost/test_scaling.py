"""Published runs whose efficiency is known."""

import pytest

from advisor.cost.scaling import strong_efficiency, weak_efficiency


@pytest.mark.parametrize(
    ("nodes", "seconds", "efficiency"), [(280, 60.1, 1.0), (350, 50.2, 0.9578), (420, 44.4, 0.9024)]
)
def test_mt_nlg_530b_at_a_fixed_batch(nodes, seconds, efficiency):
    """MT-NLG 530B, batch 1920 (arXiv 2201.11990)."""
    found = strong_efficiency(seconds, num_devices=nodes * 8, base_step_s=60.1, base_num_devices=280 * 8)
    assert found == pytest.approx(efficiency, abs=5e-5)


@pytest.mark.parametrize(
    ("rate", "base", "efficiency"),
    [
        (149, 153, 0.974),  # Megatron-LM SC21, 175B PTD, 384 -> 768 -> 1536 GPUs, TFLOP/s per GPU
        (141, 153, 0.922),
        (88, 144, 0.611),  # the same with ZeRO-3
        (44, 144, 0.306),
        (5605, 5762, 0.9728),  # torchtitan, Llama 3 8B, 8 -> 128 GPUs, tokens/s per GPU
        (6514, 6667, 0.9771),  # the same, compiled
    ],
)
def test_throughput_per_device(rate, base, efficiency):
    assert weak_efficiency(rate, base_rate_per_device=base) == pytest.approx(efficiency, abs=5e-4)
