"""The queues of DDP and FSDP2, and what a collective beside compute costs."""

from dataclasses import replace

import pytest
from toy_traces import toy_trace

from advisor.cost.collectives import CollectiveTime
from advisor.cost.schedule import schedule_step
from advisor.hardware.mesh import Mesh
from advisor.parallel import ddp, fsdp2, hsdp, zero1
from advisor.trace.records import CollectiveRecord, OpRecord, Phase

UNITS = [(f"blocks.{i}.fc", {"weight": (4, 4)}) for i in range(4)]


def step(seconds, collectives=(), microbatches=None, num_microbatches=1):
    """A trace whose steady step has one operator per entry of `seconds`."""
    microbatches = [0] * len(seconds) if microbatches is None else microbatches
    ops = [OpRecord("aten.mm.default", Phase.BACKWARD, "", m, (), (), 0) for m in (0, *microbatches)]
    return replace(
        toy_trace(UNITS),
        ops=tuple(ops),
        steady_start=1,
        collectives=tuple(collectives),
        num_microbatches=num_microbatches,
    )


def collective(issue, wait, *, stream="dp_shard", microbatch=0, after=-1):
    return CollectiveRecord("all_reduce", 1, stream, issue + 1, wait + 1, stream, microbatch, after=after)


def run(trace, seconds, times, slowdown=1.0):
    return schedule_step(
        trace,
        op_seconds=seconds,
        collectives=[CollectiveTime(t, "test") for t in times],
        overlap_slowdown=slowdown,
    )


@pytest.mark.parametrize(("each", "exposed"), [(20, 20), (30, 45), (40, 85)])
def test_ddp_queue(each, exposed):
    """Backward of 100 ms, four equal buckets ready at 25, 50, 75, 100."""
    seconds = [25.0] * 4
    trace = step(seconds, [collective(i + 1, 4) for i in range(4)])
    found = run(trace, seconds, [float(each)] * 4)
    assert found.step_s == 100 + exposed
    assert found.exposed_communication_s == exposed
    assert found.stream_busy_s == (("dp_shard", 4.0 * each),)


def fsdp2_seconds(trace, forward, backward):
    """Forward and backward of a block in one operator each; what the strategy put in and the optimizer take no time."""
    is_compute = {Phase.FORWARD: forward, Phase.BACKWARD: backward}
    seconds = []
    for op in trace.steady_ops():
        first_of_its_module = op.name == "aten.mm.default" and (op.phase is Phase.FORWARD or bool(op.inputs))
        seconds.append(float(is_compute.get(op.phase, 0)) if first_of_its_module else 0.0)
    return seconds


@pytest.mark.parametrize(("gather", "forward_s", "backward_s"), [(2, 18, 37), (6, 28, 43)])
def test_fsdp2_queue(gather, forward_s, backward_s):
    """Four equal units, forward 4, backward 8, reduce-scatter 3."""
    trace = fsdp2.STRATEGY.shard(toy_trace(UNITS), Mesh(dp_shard=4))
    times = {"all_gather": float(gather), "reduce_scatter": 3.0}
    seconds = fsdp2_seconds(trace, 4, 8)
    found = run(trace, seconds, [times[c.kind] for c in trace.collectives])
    assert found.compute_s == 48
    assert found.step_s == forward_s + backward_s
    assert found.exposed_communication_s == forward_s + backward_s - 48


def test_hsdp_reduces_over_replicas_beside_the_shard_group():
    trace = hsdp.STRATEGY.shard(toy_trace(UNITS), Mesh(dp_shard=2, dp_replicate=2))
    times = {"all_gather": 2.0, "reduce_scatter": 3.0, "all_reduce": 5.0}
    found = run(trace, fsdp2_seconds(trace, 4, 8), [times[c.kind] for c in trace.collectives])
    assert found.step_s == 18 + 37 + 5
    assert found.stream_busy_s == (("dp_replicate", 20.0), ("dp_shard", 8 * 2.0 + 4 * 3.0))


@pytest.mark.parametrize("num_microbatches", [2, 3, 7])
def test_later_micro_batches_run_again(num_microbatches):
    seconds = [1.0, 2.0, 4.0]
    trace = step(seconds, microbatches=[0, 1, 0], num_microbatches=num_microbatches)
    found = run(trace, seconds, [])
    assert found.step_s == found.compute_s == 1 + 2 * (num_microbatches - 1) + 4


@pytest.mark.parametrize("num_microbatches", [2, 3, 10])
def test_a_collective_of_each_micro_batch_and_one_of_the_last(num_microbatches):
    """Each later micro-batch waits for its own at its end; the one of the step starts in the last micro-batch."""
    seconds = [1.0, 2.0, 2.0, 4.0]
    collectives = [
        collective(0, 1),  # of the first micro-batch, waited for where the second starts
        collective(2, 3, microbatch=1),
        collective(2, 4, stream="dp_replicate"),
    ]
    trace = step(seconds, collectives, microbatches=[0, 1, 1, 0], num_microbatches=num_microbatches)
    found = run(trace, seconds, [3.0, 5.0, 20.0])
    later = num_microbatches - 1
    assert found.step_s == 3 + (2 + 5) * later - 5 + 20  # 20 starts with the last 5 and outlasts the optimizer's 4
    assert found.stream_busy_s == (("dp_replicate", 20.0), ("dp_shard", 3 + 5.0 * later))


def test_repeats_that_are_added_up_equal_repeats_that_are_run():
    """A stream that lags behind takes some micro-batches to settle."""
    seconds = [1.0, 2.0, 2.0, 4.0]
    collectives = [collective(0, 4), collective(2, 3, microbatch=1, stream="dp_replicate")]
    for times in ([11.0, 1.0], [0.5, 2.5]):
        steps = [
            run(step(seconds, collectives, [0, 1, 1, 0], m), seconds, times).step_s for m in (2, 3, 4, 5, 6, 20, 21)
        ]
        assert steps[-1] - steps[-2] == pytest.approx(steps[4] - steps[3])
        assert steps[-1] == pytest.approx(steps[4] + 15 * (steps[4] - steps[3]))


def test_zero1_communicates_once_a_step():
    trace = zero1.STRATEGY.shard(toy_trace(UNITS, num_microbatches=5), Mesh(dp_shard=4))
    found = run(trace, fsdp2_seconds(trace, 4, 8), [1.0] * len(trace.collectives))
    assert found.stream_busy_s == (("dp_shard", 8.0),)
    assert found.exposed_communication_s == 2.0  # the first gather and the last reduce-scatter


def test_ddp_overlaps_with_the_last_backward():
    trace = ddp.STRATEGY.shard(toy_trace(UNITS, num_microbatches=3), Mesh(dp_replicate=4))
    found = run(trace, fsdp2_seconds(trace, 4, 8), [5.0])
    assert (found.compute_s, found.exposed_communication_s) == (3 * 48, 5.0)


def test_compute_beside_a_collective_is_slowed():
    seconds = [10.0, 10.0]
    trace = step(seconds, [collective(0, 2)])
    assert run(trace, seconds, [6.0], slowdown=1.5).step_s == pytest.approx(22.0)  # 4 of 10 in the first 6 seconds
    assert run(trace, seconds, [60.0], slowdown=1.5).step_s == pytest.approx(60.0)
    own = schedule_step(trace, op_seconds=seconds, collectives=[CollectiveTime(6.0, "test", 1.2)])
    assert own.step_s == pytest.approx(21.0)


def test_no_collectives():
    seconds = [1.0, 2.0]
    found = run(step(seconds), seconds, [])
    assert (found.step_s, found.exposed_communication_s, found.stream_busy_s) == (3.0, 0.0, ())
