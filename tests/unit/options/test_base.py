from dataclasses import replace

from fabricated_facts import some_facts, transformer_trace

from advisor.options.base import Recipe, unknown_value
from advisor.options.precision import OPTION as PRECISION
from advisor.trace.records import Phase


def test_recipe_holds_only_what_is_not_default_and_sorted():
    recipe = Recipe(micro_batch_size=4).choosing("precision", "tf32").choosing("loss", "chunked")
    assert recipe.choices == (("loss", "chunked"), ("precision", "tf32"))
    assert recipe.choosing("loss", None).choices == (("precision", "tf32"),)
    assert recipe.choice("precision") == "tf32"
    assert recipe.choice("lora") is None


def test_unknown_value_names_the_closest():
    error = unknown_value(PRECISION, "amp-bf61", ("fp32", "amp-bf16"))
    assert "precision" in error.message
    assert "did you mean 'amp-bf16'?" in (error.hint or "")


def test_forward_ops_are_those_of_the_first_micro_batch():
    trace = transformer_trace(num_blocks=1)
    later = tuple(replace(op, microbatch=1) for op in trace.ops)
    backward = tuple(replace(op, phase=Phase.BACKWARD) for op in trace.ops)
    facts = some_facts(replace(trace, ops=(*trace.ops, *later, *backward)))
    assert facts.forward_ops() == list(trace.ops)
