from dataclasses import replace

import pytest
from fabricated_facts import some_facts, transformer_trace
from small_workloads import losses, mlp

from advisor.errors import UsageError
from advisor.options.optimizer_in_backward import OPTION


def test_not_with_accumulation():
    facts = some_facts(replace(transformer_trace(), num_microbatches=4))
    assert list(OPTION.values(facts)) == ["off"]
    assert "4 micro-batches" in (OPTION.why_not(facts) or "")
    with pytest.raises(UsageError, match="2 micro-batches"):
        OPTION.apply(mlp().with_execution(num_microbatches=2), "on")


def test_not_with_a_grad_scaler():
    with pytest.raises(UsageError, match="GradScaler"):
        OPTION.apply(mlp().with_execution(grad_scaler=True), "on")


def test_same_losses():
    changed = OPTION.apply(mlp(width=16), "on")
    assert changed.execution.optimizer_in_backward
    assert losses(changed, steps=4) == pytest.approx(losses(mlp(width=16), steps=4), rel=1e-6)


def test_the_snippet_frees_every_gradient():
    import torch

    workload = mlp(width=16)
    model = workload.build_model()
    exec(OPTION.snippet("on"), {"torch": torch, "model": model, "lr": 1e-3})
    workload.compute_loss(model, workload.make_batch(4)).backward()
    assert all(parameter.grad is None for parameter in model.parameters())
