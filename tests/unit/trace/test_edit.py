"""Changes said in old positions end up where they belong in the new trace."""

from toy_traces import assert_consistent, toy_trace

from advisor.trace.edit import TraceEditor
from advisor.trace.records import Category, OpRecord, Phase, StorageRecord

LAYERS = [("embed", {"weight": (4, 4)}), ("head", {"weight": (4, 4)})]


def copy(name="aten.copy_.default"):
    return OpRecord(name, Phase.FORWARD, "", 0, (), (), 0)


def test_no_change_is_the_same_trace():
    trace = toy_trace(LAYERS)
    assert TraceEditor(trace).finish() == trace


def test_an_operator_put_in_shifts_what_follows():
    trace = toy_trace(LAYERS)
    editor = TraceEditor(trace)
    buffer = editor.add_storage(StorageRecord(512, Category.COMMUNICATION, "", False))
    start = trace.steady_start
    before = editor.mark(start)
    editor.alloc(buffer, start)
    editor.insert(copy(), start)
    editor.free(buffer, start)
    gather = editor.issue("all_gather", 512, at=before, axis="dp_shard", microbatch=0, unit="")
    editor.wait(gather, editor.mark(start))
    new = editor.finish(notes=("one more",))
    assert_consistent(new)
    assert new.ops[start] == copy()
    assert new.ops[start + 1 :] == trace.ops[start:]
    assert new.steady_start == start
    assert [(e.position, e.is_alloc) for e in new.events if e.storage == buffer] == [(start, True), (start + 1, False)]
    assert (new.collectives[0].issue_position, new.collectives[0].wait_position) == (start, start + 1)
    assert new.notes == ("one more",)


def test_a_dropped_operator_takes_its_result_along():
    trace = toy_trace(LAYERS, autocast_dtype="bfloat16")
    editor = TraceEditor(trace)
    cast = next(i for i, op in enumerate(trace.ops) if op.name == "aten._to_copy.default")
    editor.drop(cast)
    editor.forget(trace.ops[cast].outputs[0].storage)
    new = editor.finish()
    assert_consistent(new)
    assert len(new.ops) == len(trace.ops) - 1
    assert new.steady_start == trace.steady_start - 1
    assert all(event.storage != trace.ops[cast].outputs[0].storage for event in new.events)


def test_what_is_put_in_comes_between_frees_and_takes():
    trace = toy_trace(LAYERS)
    editor = TraceEditor(trace)
    frees = {e.position for e in trace.events if not e.is_alloc}
    position = next(e.position for e in trace.events if e.is_alloc and e.position in frees)
    buffer = editor.add_storage(StorageRecord(1, Category.COMMUNICATION, "", True))
    editor.alloc(buffer, position)
    here = [e for e in editor.finish().events if e.position == position]
    index = next(i for i, e in enumerate(here) if e.storage == buffer)
    assert index > 0
    assert not any(e.is_alloc for e in here[:index])
    assert here[index + 1].is_alloc
