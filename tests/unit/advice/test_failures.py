import pytest

from advisor.advice import failures
from advisor.advice.failures import PUBLISHED

MINUTE_H = 1 / 60
MINUTE_DAYS = 1 / 1440


def test_mean_time_between_failures():
    assert failures.mean_time_between_failures(50_677, num_devices=16_384) == pytest.approx(3.09308, rel=1e-5)
    llama_3 = 54 * 24 * 16_384 / 419  # 54 days, 16,384 devices, 419 unexpected interruptions
    assert llama_3 == pytest.approx(50_677, rel=1e-4)
    assert PUBLISHED.low < PUBLISHED.device_hours < PUBLISHED.high


def test_checkpoint_interval():
    assert failures.checkpoint_interval(MINUTE_H, mtbf=781.25) == pytest.approx(5.103104, rel=1e-6)
    assert failures.checkpoint_interval(5 * MINUTE_H, mtbf=24) == pytest.approx(2.0)


def test_daly_interval():
    assert failures.daly_checkpoint_interval(MINUTE_H, mtbf=781.25) == pytest.approx(5.091999, rel=1e-6)
    assert failures.daly_checkpoint_interval(5 * MINUTE_H, mtbf=24) == pytest.approx(1.944830, rel=1e-6)
    assert failures.daly_checkpoint_interval(2, mtbf=1) == 1


def test_waste():
    interval = failures.checkpoint_interval(MINUTE_H, mtbf=781.25)
    waste = failures.failure_waste(stall=MINUTE_H, interval=interval, restart=10 * MINUTE_H, mtbf=781.25)
    assert waste == pytest.approx(6.745306e-3, rel=1e-6)


@pytest.mark.parametrize(
    "num_devices, usual, at_worst", [(8, 0.002, 0.006), (64, 0.007, 0.018), (512, 0.020, 0.057), (2048, 0.044, 0.135)]
)
def test_waste_by_number_of_devices(num_devices, usual, at_worst):
    for device_hours, expected in ((50_000, usual), (8_000, at_worst)):
        mtbf = failures.mean_time_between_failures(device_hours, num_devices=num_devices)
        interval = failures.checkpoint_interval(MINUTE_H, mtbf=mtbf)
        waste = failures.failure_waste(stall=MINUTE_H, interval=interval, restart=10 * MINUTE_H, mtbf=mtbf)
        assert waste == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize(
    "num_nodes, restart, interval, stall, ratio", [(2048, 5, 10, 1, 0.825051), (8, 10, 60, 2, 0.966344)]
)
def test_effective_time_ratio(num_nodes, restart, interval, stall, ratio):
    found = failures.expected_effective_time_ratio(
        num_nodes,
        failures_per_node_day=6.5e-3,
        restart_days=restart * MINUTE_DAYS,
        interval_days=interval * MINUTE_DAYS,
        stall_days=stall * MINUTE_DAYS,
    )
    assert found == pytest.approx(ratio, rel=1e-5)


@pytest.mark.parametrize("device_hours, chance", [(50_677, 0.0225), (82_000, 0.014), (8_000, 0.134)])
def test_chance_of_a_failure(device_hours, chance):
    found = failures.failure_probability(16 * 72, device_hours_per_failure=device_hours)
    assert found == pytest.approx(chance, rel=5e-3)


def test_job_cost():
    cost = failures.job_cost_usd(
        num_devices=64,
        price_usd_per_hour=2.0,
        ideal_hours=100,
        waste=0.2,
        scaling_efficiency=0.5,
        data_cost=1.1,
        num_spare_devices=8,
    )
    assert cost == pytest.approx(72 * 2.0 * 100 / (0.8 * 0.5) * 1.1)
