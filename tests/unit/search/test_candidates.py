from dataclasses import replace

import pytest

from advisor.hardware import catalog
from advisor.search.candidates import Pricer, trace_target
from advisor.search.plan import Goal


def pricer(**changes):
    settings = {"session": None, "device": catalog.device("a100-sxm4-80gb"), "goal": Goal(global_batch_size=8)}
    return Pricer(**{**settings, **changes})


def test_rocm_is_traced_as_cuda_and_the_cpu_as_itself():
    assert trace_target(catalog.device("mi300x")).device_type == "cuda"
    assert trace_target(catalog.device("a100-sxm4-80gb")).compute_capability == (8, 0)
    assert trace_target(catalog.device("apple-m3-max-40core")).device_type == "mps"


def test_one_device_costs_its_own_price():
    device = catalog.device("a100-sxm4-80gb")
    assert pricer().cost(1, 7200) == pytest.approx(2 * device.price_usd_per_hour.value)


def test_a_cluster_is_booked_in_whole_nodes():
    cluster = catalog.cluster("p4de-24xlarge")
    node = cluster.price_usd_per_hour.value
    booked = pricer(cluster=cluster)
    assert booked.cost(2, 3600) == pytest.approx(node)
    assert booked.cost(9, 3600) == pytest.approx(2 * node)


def test_a_node_without_a_price_costs_what_its_devices_do():
    cluster = catalog.cluster("dgx-a100-80gb")
    assert cluster.price_usd_per_hour is None
    price = catalog.device("a100-sxm4-80gb").price_usd_per_hour.value
    assert pricer(cluster=cluster).cost(2, 3600) == pytest.approx(8 * price)


def test_the_users_price_wins():
    assert pricer(price_usd_per_hour=2.0, cluster=catalog.cluster("dgx-a100-80gb")).cost(4, 3600) == 8.0


def test_no_price_is_blank():
    device = replace(catalog.device("a100-sxm4-80gb"), price_usd_per_hour=None)
    assert pricer(device=device).cost(1, 3600) is None
