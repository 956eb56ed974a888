import pytest
from fabricated_facts import CPU, V100, a_device, some_facts
from small_workloads import mlp

from advisor.options.compile import OPTION


@pytest.mark.parametrize(
    ("device", "legal"),
    [
        (V100, True),
        (CPU, True),
        (a_device(device_type="rocm", compute_capability=None), True),
        (a_device(compute_capability=(6, 1)), False),
        (a_device(compute_capability=None), False),
        (a_device(device_type="mps", compute_capability=None), False),
    ],
)
def test_legal_where_it_generates_code(device, legal):
    facts = some_facts(device=device)
    assert list(OPTION.values(facts)) == (["off", "on"] if legal else ["off"])
    assert (OPTION.why_not(facts) is None) == legal


def test_is_measured_only_and_says_so():
    assert OPTION.apply(mlp(), "on").execution.compile
    assert "measure" in (OPTION.unpredictable("on") or "")
    assert OPTION.unpredictable("off") is None
