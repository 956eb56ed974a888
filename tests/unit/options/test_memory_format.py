from dataclasses import replace

import pytest
from fabricated_facts import some_facts
from fabricated_traces import TraceBuilder
from small_workloads import convnet, losses

from advisor.options.memory_format import OPTION
from advisor.trace.records import Category, ParameterRecord


def convolution(*, autocast: bool, weight_shape=(8, 3, 3, 3)):
    builder = TraceBuilder()
    image = builder.tensor((1, 3, 8, 8))
    weight = builder.tensor(weight_shape, category=Category.PARAMETER)
    builder.parameters.append(ParameterRecord("conv.weight", weight.shape, "float32", True, weight.storage))
    if autocast:
        copy = builder.tensor(weight_shape, "bfloat16")
        builder.op("aten._to_copy.default", (weight,), (copy,))
        weight = copy
    builder.op("aten.convolution.default", (image, weight), (builder.tensor((1, 8, 6, 6)),))
    return builder.build()


@pytest.mark.parametrize("autocast", [False, True])
def test_offered_where_images_are_convolved(autocast):
    facts = some_facts(convolution(autocast=autocast))
    assert list(OPTION.values(facts)) == ["contiguous", "channels_last"]
    assert OPTION.why_not(facts) is None


def test_not_for_sequences_nor_without_convolutions():
    assert list(OPTION.values(some_facts(convolution(autocast=False, weight_shape=(8, 3, 3))))) == ["contiguous"]
    assert list(OPTION.values(some_facts())) == ["contiguous"]
    no_product = replace(convolution(autocast=False), ops=())
    assert OPTION.why_not(some_facts(no_product)) is not None


def test_same_losses():
    changed = OPTION.apply(convnet(), "channels_last")
    assert changed.execution.memory_format == "channels_last"
    assert losses(changed, steps=3) == pytest.approx(losses(convnet(), steps=3), rel=1e-5)
