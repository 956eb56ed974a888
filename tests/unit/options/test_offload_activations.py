from fabricated_facts import CPU, a_device, some_facts
from small_workloads import mlp

from advisor.options.offload_activations import OPTION


def test_legal_where_the_way_to_the_host_is_known():
    assert list(OPTION.values(some_facts())) == ["off", "on"]
    for device, reason in ((CPU, "host memory already"), (a_device(host_bandwidth=None), "no bandwidth")):
        facts = some_facts(device=device)
        assert list(OPTION.values(facts)) == ["off"]
        assert reason in (OPTION.why_not(facts) or "")


def test_apply_says_so_to_the_step():
    assert OPTION.apply(mlp(), "on").execution.offload_activations
