import contextlib

import pytest
import torch

from advisor.errors import MeasurementError
from advisor.measure.backends.base import PeakMemory
from advisor.measure.result import Outcome
from advisor.measure.runner import check_room, local_backend, measure_step
from advisor.workload.spec import Workload


class FakeClock:
    """Stands still but for what a step is said to take."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class FakeBackend:
    name = "fake"
    order = 0

    def __init__(self, *, free_bytes=None):
        self._free_bytes = free_bytes
        self.peaks = iter([PeakMemory(allocated_bytes=700, reserved_bytes=900), PeakMemory(allocated_bytes=800)])
        self.num_synchronizations = 0

    def is_available(self):
        return True

    def device(self):
        return "cpu"

    def describe(self):
        return "fake: no device"

    def free_bytes(self):
        return self._free_bytes

    def synchronize(self):
        self.num_synchronizations += 1

    @contextlib.contextmanager
    def recording(self, step):
        yield next(self.peaks)


def workload(loss=lambda out, step: out.sum(), *, durations=(), clock=None):
    """A tiny model; step `i` takes `durations[i]` seconds of the fake clock, the last one from then on."""
    steps = []

    def compute_loss(model, batch):
        if durations:
            clock.now += durations[min(len(steps), len(durations) - 1)]
        steps.append(None)
        return loss(model(batch), len(steps))

    return Workload(
        build_model=lambda: torch.nn.Linear(2, 1),
        make_batch=lambda batch_size: torch.ones(batch_size, 2),
        compute_loss=compute_loss,
        make_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.0),
    )


def measured(durations, *, time_limit_s, loss=lambda out, step: out.sum()):
    clock = FakeClock()
    job = workload(loss, durations=durations, clock=clock)
    return measure_step(job, time_limit_s=time_limit_s, backend=FakeBackend(), clock=clock)


def test_steady_steps_stop_after_five():
    result = measured([9.0, 3.0, 1.0], time_limit_s=100)
    assert result.outcome is Outcome.COMPLETED
    assert result.reason == ""
    assert result.num_steps == 5
    assert result.step_time_s == result.step_time_low_s == result.step_time_high_s == 1.0
    assert result.step_time_uncertainty == 0.0
    assert result.device == "fake: no device"
    assert result.software.startswith("torch ")
    assert result.final_loss is not None


def test_peak_is_the_higher_of_the_warm_up_steps():
    result = measured([1.0], time_limit_s=100)
    assert result.peak_allocated_bytes == 800
    assert result.peak_reserved_bytes == 900


def test_scattered_steps_go_on_until_the_median_is_known():
    result = measured([1.0, 1.0, 1.0, 1.2, 1.0, 1.3, 1.0, 1.0], time_limit_s=1000)
    assert result.outcome is Outcome.COMPLETED
    assert result.num_steps > 5
    assert result.step_time_s == pytest.approx(1.0)
    assert result.step_time_uncertainty <= 0.05


def test_time_that_ends_before_the_median_is_known_shows_in_the_uncertainty():
    result = measured([1.0, 1.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0], time_limit_s=11.5)
    assert result.outcome is Outcome.COMPLETED
    assert result.num_steps >= 5
    assert result.step_time_uncertainty > 0.05


def test_time_limit_with_a_few_steps_keeps_them():
    result = measured([2.0], time_limit_s=9)
    assert result.outcome is Outcome.TIMED_OUT
    assert result.reason == "the time limit ended it after 2 of at least 5 timed steps; the last step took 2 s"
    assert result.num_steps == 2
    assert result.step_time_s == 2.0
    assert result.step_time_uncertainty is None
    assert result.peak_allocated_bytes == 800


def test_time_limit_within_the_warm_up():
    result = measured([60.0], time_limit_s=50)
    assert result.outcome is Outcome.TIMED_OUT
    assert result.reason == "the time limit ended it after 1 of 2 warm-up steps; the last step took 60 s"
    assert result.step_time_s is None
    assert result.num_steps == 0
    assert result.peak_allocated_bytes == 700


def test_a_slow_first_step_does_not_end_it():
    result = measured([60.0, 1.0], time_limit_s=100)
    assert result.outcome is Outcome.COMPLETED
    assert result.step_time_s == 1.0


@pytest.mark.parametrize("bad_step, num_steps", [(1, 0), (4, 2)])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number(bad_step, num_steps, value):
    result = measured(
        [1.0], time_limit_s=100, loss=lambda out, step: out.sum() * 0.0 + (value if step == bad_step else 1.0)
    )
    assert result.outcome is Outcome.NAN_LOSS
    assert result.reason == f"the loss of step {bad_step} is {value}"
    assert result.num_steps == num_steps
    assert result.final_loss is None


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no more"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nsee documentation"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried ..."),
    ],
)
def test_out_of_memory_is_an_outcome_with_the_users_frame(error):
    def loss(out, step):
        if step == 4:
            raise error
        return out.sum()

    result = measured([1.0], time_limit_s=100, loss=loss)
    assert result.outcome is Outcome.OUT_OF_MEMORY
    assert "test_runner.py" in result.reason
    assert str(error).partition("\n")[0] in result.reason
    assert "see documentation" not in result.reason
    assert (result.num_steps, result.step_time_s) == (1, 1.0)


def test_out_of_memory_of_a_real_allocation():
    def build():
        return torch.nn.Linear(2**24, 2**24)  # 1 PiB

    job = Workload(
        build_model=build,
        make_batch=lambda batch_size: None,
        compute_loss=lambda model, batch: None,
        make_optimizer=lambda model: None,
    )
    result = measure_step(job, time_limit_s=10)
    assert result.outcome is Outcome.OUT_OF_MEMORY
    assert "test_runner.py" in result.reason
    assert result.peak_allocated_bytes is None


def test_other_errors_of_the_users_code_pass_through():
    def loss(out, step):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        measured([1.0], time_limit_s=100, loss=loss)


def test_the_clock_is_read_after_the_device_is_done():
    backend = FakeBackend()
    result = measure_step(workload(), time_limit_s=60, backend=backend)
    assert backend.num_synchronizations == 2 * (2 + result.num_steps)


def test_room_is_checked_before_anything_is_allocated():
    check_room(1000, backend=FakeBackend(free_bytes=1000))
    check_room(10**18, backend=FakeBackend(free_bytes=None))
    with pytest.raises(MeasurementError, match=r"need 80.0 GiB, and fake: no device has 2.0 GiB free"):
        check_room(80 * 1024**3, backend=FakeBackend(free_bytes=2 * 1024**3))


def test_this_machine_has_no_exabyte():
    with pytest.raises(MeasurementError, match="nothing was run"):
        check_room(10**18)


def test_a_real_step_on_this_machines_device():
    result = measure_step(workload(), time_limit_s=30)
    assert result.outcome is Outcome.COMPLETED
    assert result.step_time_low_s <= result.step_time_s <= result.step_time_high_s
    assert result.device.startswith(f"{local_backend().device()}: ")
