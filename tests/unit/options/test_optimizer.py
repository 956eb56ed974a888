from dataclasses import replace

import pytest
import torch
from fabricated_facts import some_facts, transformer_trace
from small_workloads import losses, mlp

from advisor.errors import UsageError
from advisor.options.optimizer import OPTION
from advisor.trace.records import OptimizerRecord


def facts_of(type_name, implementation):
    return some_facts(replace(transformer_trace(), optimizer=OptimizerRecord(type_name, implementation, 0.1)))


@pytest.mark.parametrize(
    ("type_name", "implementation", "values"),
    [
        ("AdamW", "foreach", ["as-is", "fused", "for-loop"]),
        ("SGD", "fused", ["as-is", "foreach", "for-loop"]),
        ("RMSprop", "for-loop", ["as-is", "foreach"]),
        ("LBFGS", "custom", ["as-is"]),
    ],
)
def test_offers_the_other_implementations_of_the_class(type_name, implementation, values):
    facts = facts_of(type_name, implementation)
    assert list(OPTION.values(facts)) == values
    assert (OPTION.why_not(facts) is None) == (len(values) > 1)


@pytest.mark.parametrize("value", ["fused", "foreach", "for-loop"])
def test_same_update_whatever_the_implementation(value):
    workload = OPTION.apply(mlp(width=16), value)
    (group,) = workload.make_optimizer(workload.build_model()).param_groups
    assert (group["fused"], group["foreach"]) == (value == "fused", value == "foreach")
    assert losses(workload, steps=5) == pytest.approx(losses(mlp(width=16), steps=5), rel=1e-5)


def test_settings_of_each_group_survive():
    def make_optimizer(model):
        first, *rest = model.parameters()
        groups = [{"params": [first], "lr": 0.5}, {"params": rest}]
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)

    workload = OPTION.apply(replace(mlp(width=8), make_optimizer=make_optimizer), "fused")
    optimizer = workload.make_optimizer(workload.build_model())
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1]
    assert all(group["nesterov"] and group["fused"] for group in optimizer.param_groups)


def test_a_class_without_such_an_implementation_is_refused():
    workload = replace(mlp(width=8), make_optimizer=lambda model: torch.optim.RMSprop(model.parameters()))
    changed = OPTION.apply(workload, "fused")
    with pytest.raises(UsageError, match="RMSprop"):
        changed.make_optimizer(changed.build_model())
