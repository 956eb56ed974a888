"""FSDP units: what one `fully_shard` call wraps, and when it runs."""

from dataclasses import replace

import pytest
from toy_traces import llama3_layers, toy_layers, toy_trace

from advisor.trace.records import TensorRef
from advisor.trace.units import fsdp_units, unit_spans


def sizes(trace):
    return [sum(trace.parameters[i].numel for i in unit.parameters) for unit in fsdp_units(trace)]


def test_blocks_and_the_rest():
    units = fsdp_units(toy_trace())
    assert [unit.name for unit in units] == ["", "blocks.0", "blocks.1", "blocks.2", "blocks.3"]
    assert sizes(toy_trace()) == [16_640 // 4, *[49_664 // 4] * 4]


@pytest.mark.parametrize(
    ("width", "ffn", "num_blocks", "block", "total"),
    [
        (4096, 14336, 32, 218_112_000, 8_030_261_248),
        (8192, 28672, 80, 855_654_400, 70_553_706_496),
        (16384, 53248, 126, 3_187_703_808, 405_853_388_800),
    ],
)
def test_sizes_of_llama3(width, ffn, num_blocks, block, total):
    trace = toy_trace(llama3_layers(width=width, ffn=ffn, num_blocks=num_blocks))
    assert sizes(trace)[1:] == [block] * num_blocks
    assert trace.num_parameters == total


def test_a_parameter_read_elsewhere_belongs_to_the_root():
    layers = [("embed", {"weight": (4, 4)}), ("blocks.0.fc", {"weight": (4, 4)}), ("blocks.1.fc", {"weight": (4, 4)})]
    trace = toy_trace(layers)
    ops = list(trace.ops)
    reader = next(i for i, op in enumerate(ops) if op.module == "embed")
    ops[reader] = replace(ops[reader], inputs=(TensorRef(trace.parameters[2].storage, (4, 4), "float32"),))
    units = fsdp_units(replace(trace, ops=tuple(ops)))
    assert {unit.name: unit.parameters for unit in units} == {"": (0, 2), "blocks.0": (1,)}


def test_spans_cover_the_steps_in_order():
    trace = toy_trace(toy_layers(num_blocks=2), num_microbatches=3)
    units = fsdp_units(trace)
    spans = unit_spans(trace, units)
    assert len(spans) == 3 * 2 * 2 * 2  # units, directions, micro-batches, steps
    forward = {s.unit: s for s in spans if (s.is_steady, s.microbatch, s.is_backward) == (True, 1, False)}
    backward = {s.unit: s for s in spans if (s.is_steady, s.microbatch, s.is_backward) == (True, 1, True)}
    assert forward[0].start < forward[1].start < forward[1].end == forward[2].start < forward[2].end < forward[0].end
    assert forward[0].end == backward[0].start < backward[2].start < backward[2].end == backward[1].start
    assert all(trace.ops[s.start].module.startswith(units[s.unit].name) for s in spans)
