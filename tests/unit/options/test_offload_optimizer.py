from dataclasses import replace

from fabricated_facts import CPU, a_device, some_facts, transformer_trace
from small_workloads import mlp

from advisor.options.offload_optimizer import OPTION
from advisor.trace.records import Category, StorageRecord


def with_state(*, on_host: bool = False):
    trace = transformer_trace()
    state = StorageRecord(64, Category.OPTIMIZER_STATE, "", True, on_host=on_host)
    return replace(trace, storages=(*trace.storages, state))


def test_legal_where_there_is_state_and_a_way_to_the_host():
    assert list(OPTION.values(some_facts(with_state()))) == ["off", "on"]
    for trace, device, reason in (
        (with_state(), CPU, "host memory already"),
        (with_state(), a_device(host_bandwidth=None), "no bandwidth"),
        (with_state(on_host=True), a_device(), "no state"),
    ):
        facts = some_facts(trace, device)
        assert list(OPTION.values(facts)) == ["off"]
        assert reason in (OPTION.why_not(facts) or "")


def test_apply_says_so_to_the_step():
    assert OPTION.apply(mlp(), "on").execution.offload_optimizer_states
