"""What holds for every option that is found."""

import ast
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from fabricated_facts import CPU, V100, some_facts, transformer_trace

from advisor.discovery import discover
from advisor.errors import UsageError
from advisor.options.base import Option, Risk
from advisor.trace.records import Category, ModuleRecord, OptimizerRecord, ParameterRecord, StorageRecord
from advisor.workload.spec import Workload

OPTIONS = discover("advisor.options", "OPTION", Option)
UNIT_TESTS = Path(__file__).parents[1] / "unit" / "options"


def never(*args):
    raise AssertionError("listing and applying an option builds nothing")


WORKLOAD = Workload(
    build_model=never,
    make_batch=never,
    compute_loss=never,
    make_optimizer=never,
    variants={"tiny": lambda: never()},
)


def everything():
    """A trace on which every option has something to choose."""
    trace = transformer_trace()
    first = next(op for op in trace.ops if op.name == "aten.mm.default")
    weight = ParameterRecord("conv.weight", (8, 3, 3, 3), "float32", True, first.inputs[1].storage)
    return replace(
        trace,
        ops=(*trace.ops, replace(first, name="aten.convolution.default")),
        parameters=(*trace.parameters, weight),
        modules=(*trace.modules, ModuleRecord("timm", "Attention", 0, (("fused_attn", False),))),
        storages=(*trace.storages, StorageRecord(8, Category.OPTIMIZER_STATE, "", True)),
    )


GENEROUS = some_facts(everything(), fine_tune=True, mean_sequence_fill=0.3, variants=("tiny",))
MEAGRE = some_facts(
    replace(
        transformer_trace(num_blocks=0, vocabulary=4),
        optimizer=OptimizerRecord("Muon", "custom", 0.02),
        num_microbatches=2,
    ),
    replace(CPU, native_bfloat16=False),
)
FACTS = [GENEROUS, MEAGRE, some_facts(device=V100), some_facts(transformer_trace(dtype="bfloat16"))]

each_option = pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)


def every_value(option):
    return dict.fromkeys(value for facts in FACTS for value in option.values(facts))


@each_option
def test_has_a_unit_test_and_says_what_it_does(option):
    assert (UNIT_TESTS / f"test_{option.name}.py").exists()
    assert option.title
    assert "Effect" in (import_module(f"advisor.options.{option.name}").__doc__ or "")


def test_the_order_is_total():
    assert len({option.order for option in OPTIONS.values()}) == len(OPTIONS)


@each_option
def test_there_is_something_to_choose_somewhere(option):
    assert len(option.values(GENEROUS)) > 1
    assert option.why_not(GENEROUS) is None


@each_option
@pytest.mark.parametrize("facts", FACTS)
def test_gives_a_reason_exactly_where_there_is_nothing_to_choose(option, facts):
    values = list(option.values(facts))
    assert len(set(values)) == len(values)
    assert (option.why_not(facts) is None) == (len(values) > 1)


@each_option
@pytest.mark.parametrize("facts", FACTS)
def test_the_default_changes_nothing(option, facts):
    default = option.values(facts)[0]
    assert option.apply(WORKLOAD, default) is WORKLOAD
    assert option.snippet(default) == ""
    assert option.risk(default) is Risk.NOTHING
    assert option.unpredictable(default) is None


@each_option
def test_every_other_value_is_applied_without_building_anything_and_has_code_to_paste(option):
    for value in every_value(option):
        if value in {option.values(facts)[0] for facts in FACTS}:
            continue
        assert option.apply(WORKLOAD, value) != WORKLOAD
        assert option.snippet(value).strip()
        ast.parse(option.snippet(value))
        assert isinstance(option.risk(value), Risk)


@each_option
def test_an_unknown_value_is_the_users_mistake(option):
    with pytest.raises(UsageError, match=option.name) as error:
        option.apply(WORKLOAD, "no-such-value")
    assert option.values(MEAGRE)[0] in (error.value.hint or "")


def test_listing_values_needs_no_torch():
    modules = ", ".join(f"advisor.options.{name}" for name in OPTIONS)
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
