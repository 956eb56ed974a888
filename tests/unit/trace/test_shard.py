"""Dim-0 shards of states, as the rank with the largest ones holds them."""

from dataclasses import replace

import pytest
from toy_traces import storage_bytes, toy_trace

from advisor.trace.edit import TraceEditor
from advisor.trace.records import Category, OpRecord, ParameterRecord, Phase, TensorRef
from advisor.trace.shard import shard_numel, shard_shape, shard_states


def sharded(trace, degree):
    editor = TraceEditor(trace)
    shard_states(editor, degree)
    return editor.finish()


@pytest.mark.parametrize(
    ("shape", "degree", "shard"),
    [((64, 32), 4, (16, 32)), ((3, 1_000_000), 64, (1, 1_000_000)), ((10,), 4, (3,)), ((0, 5), 2, (0, 5)), ((), 2, ())],
)
def test_shard_shape(shape, degree, shard):
    assert shard_shape(shape, degree) == shard
    numel = 1
    for size in shard:
        numel *= size
    if shape:
        assert shard_numel(ParameterRecord("w", shape, "float32", True, 0), degree) == numel


def test_states_shrink_and_the_step_count_stays():
    trace = toy_trace()
    new = sharded(trace, 4)
    for category in (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE):
        assert storage_bytes(new, category) == storage_bytes(trace, category) // 4
    counts = [s.nbytes for s in new.storages if s.on_host]
    assert set(counts) == {4}


def test_the_optimizer_works_on_shards():
    trace = toy_trace()
    new = sharded(trace, 4)
    for old, op in zip(trace.ops, new.ops, strict=True):
        factor = 4 if op.phase is Phase.OPTIMIZER else 1
        assert (op.bytes_read, op.bytes_written) == (old.bytes_read // factor, old.bytes_written // factor)
    roots = {op.outputs[0].storage for op in new.ops if op.name.startswith("aten._foreach_sqrt")}
    assert all(new.storages[s].nbytes == trace.storages[s].nbytes // 4 for s in roots)


def test_a_norm_stays_a_number():
    trace = toy_trace([("fc", {"weight": (8, 8)})])
    gradient = next(i for i, s in enumerate(trace.storages) if s.category is Category.GRADIENT)
    scalar = next(i for i, s in enumerate(trace.storages) if s.on_host)
    norm = OpRecord(
        "aten._foreach_norm.Scalar",
        Phase.OPTIMIZER,
        "",
        0,
        (TensorRef(gradient, (8, 8), "float32"),),
        (TensorRef(scalar, (), "float32"),),
        0,
    )
    new = sharded(replace(trace, ops=(*trace.ops, norm)), 2)
    assert new.ops[-1].inputs[0].shape == (4, 8)
    assert new.ops[-1].outputs[0].shape == ()
    assert new.storages[scalar].nbytes == 4
