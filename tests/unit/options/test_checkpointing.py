from dataclasses import replace

import pytest
from fabricated_facts import some_facts, transformer_trace
from small_workloads import gpt, losses

from advisor.options.checkpointing import OPTION
from advisor.trace.records import Phase


def test_values_follow_the_longest_chain():
    assert list(OPTION.values(some_facts(transformer_trace(num_blocks=3)))) == [
        "none", "selective", "every-3", "every-2", "all",
    ]  # fmt: skip
    without = some_facts(transformer_trace(num_blocks=0))
    assert list(OPTION.values(without)) == ["none"]
    assert "repeated blocks" in (OPTION.why_not(without) or "")


def test_selective_is_not_offered_where_a_product_is_overwritten():
    trace = transformer_trace(num_blocks=2)
    product = next(op for op in trace.ops if op.name == "aten.mm.default")
    relu = replace(product, name="aten.relu_.default", inputs=product.outputs, flops=0)
    assert "selective" not in OPTION.values(some_facts(replace(trace, ops=(*trace.ops, relu))))


@pytest.mark.parametrize("value", ["all", "every-2", "every-3", "selective"])
def test_parameters_keep_their_names_and_losses_their_values(value):
    workload = gpt(layers=3, width=16)
    changed = OPTION.apply(workload, value)
    names = [name for name, _ in workload.build_model().named_parameters()]
    assert [name for name, _ in changed.build_model().named_parameters()] == names
    assert losses(changed, steps=2) == pytest.approx(losses(workload, steps=2), rel=1e-5)


@pytest.mark.parametrize(("value", "blocks"), [("all", {0, 1, 2, 3}), ("every-2", {0, 2}), ("every-3", {0, 3})])
def test_the_trace_shows_the_chosen_blocks_again(value, blocks):
    from advisor.trace.records import TraceTarget
    from advisor.trace.tracer import trace_step

    trace = trace_step(OPTION.apply(gpt(layers=4), value), TraceTarget(device_type="cpu"))
    again = {op.module for op in trace.steady_ops() if op.phase is Phase.RECOMPUTE}
    assert {int(module.split(".")[1]) for module in again} == blocks


def test_selective_runs_no_product_again_but_those_of_the_scores():
    from advisor.trace.records import TraceTarget
    from advisor.trace.tracer import trace_step

    trace = trace_step(OPTION.apply(gpt(layers=2, length=64, width=16), "selective"), TraceTarget(device_type="cpu"))
    again = [op.name for op in trace.steady_ops() if op.phase is Phase.RECOMPUTE and op.flops]
    assert again == ["aten.bmm.default"] * 2  # q k^T of each block, larger than q and k


@pytest.mark.parametrize("value", ["all", "every-2", "selective"])
def test_the_snippet_runs(value):
    import torch

    workload = gpt(layers=2, width=16)
    model, batch = workload.build_model(), workload.make_batch(2)
    plain = model(*batch)
    exec(OPTION.snippet(value), {"torch": torch, "model": model})
    checkpointed = model(*batch)
    checkpointed.backward()
    assert checkpointed.item() == plain.item()
