from dataclasses import replace

import pytest
from fabricated_facts import HEADS, TOKENS, some_facts, transformer_trace
from small_workloads import mlp
from torch import nn

from advisor.errors import UsageError
from advisor.options.attention import OPTION


def with_switch(trace, attribute):
    root, *rest = trace.modules
    return replace(trace, modules=(replace(root, attributes=(attribute,)), *rest))


@pytest.mark.parametrize("attribute", [("attn_implementation", "eager"), ("fused_attn", False)])
def test_offered_where_scores_are_written_and_there_is_a_switch(attribute):
    facts = some_facts(with_switch(transformer_trace(), attribute))
    assert list(OPTION.values(facts)) == ["as-written", "sdpa"]
    assert OPTION.why_not(facts) is None


def test_own_code_is_told_what_it_would_save():
    facts = some_facts(transformer_trace(num_blocks=2))
    assert list(OPTION.values(facts)) == ["as-written"]
    reason = OPTION.why_not(facts) or ""
    held = 2 * HEADS * TOKENS * TOKENS * 4
    assert held == 64 * 1024
    assert "2 modules (blocks.0.attention, ...) hold 64 KiB" in reason
    assert "by hand" in reason


def test_nothing_to_do_where_no_scores_are_written():
    facts = some_facts(with_switch(transformer_trace(writes_scores=False), ("attn_implementation", "eager")))
    assert list(OPTION.values(facts)) == ["as-written"]
    assert "no attention" in (OPTION.why_not(facts) or "")


def test_a_softmax_module_belongs_to_its_parent():
    trace = transformer_trace(num_blocks=1)
    softmax = next(module for module in trace.modules if module.name == "blocks.0.attention")
    modules = (*trace.modules, replace(softmax, name="blocks.0.attention.attend", type_name="Softmax"))
    ops = tuple(
        replace(op, module="blocks.0.attention.attend") if op.name == "aten._softmax.default" else op
        for op in trace.ops
    )
    reason = OPTION.why_not(some_facts(replace(trace, modules=modules, ops=ops))) or ""
    assert "1 modules (blocks.0.attention," in reason


class Config:
    _attn_implementation = "eager"


def test_sets_the_switch():
    def build_model():
        model = nn.Linear(2, 2)
        model.config = Config()
        model.inner = nn.Identity()
        model.inner.fused_attn = False
        return model

    model = OPTION.apply(replace(mlp(), build_model=build_model), "sdpa").build_model()
    assert model.config._attn_implementation == "sdpa"
    assert model.inner.fused_attn is True


def test_refuses_a_model_without_a_switch():
    with pytest.raises(UsageError, match="no switch"):
        OPTION.apply(mlp(), "sdpa").build_model()
