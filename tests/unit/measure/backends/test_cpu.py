import os
import subprocess
import sys

import torch

from advisor.measure.backends.cpu import BACKEND, held_tensors, live_bytes
from advisor.workload.spec import Workload
from advisor.workload.step import prepare, run_step

WIDTH, BATCH = 256, 8
PARAMETERS = 4 * (WIDTH * WIDTH)
ACTIVATION = 4 * BATCH * WIDTH


def prepared(optimizer, *, depth=3):
    """`depth` linear layers without bias, float32; the loss is the sum of the output."""
    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(depth)]
    return prepare(
        Workload(
            build_model=lambda: torch.nn.Sequential(*layers),
            make_batch=lambda batch_size: torch.ones(BATCH, WIDTH),
            compute_loss=lambda model, batch: model(batch).sum(),
            make_optimizer=optimizer,
        )
    )


def adam(model):
    return torch.optim.Adam(model.parameters(), foreach=False)


def peak_of_one_step(step):
    with BACKEND.recording(step) as peak:
        run_step(step)
    assert peak.reserved_bytes is None
    return peak.allocated_bytes


def test_tensors_held_between_steps():
    step = prepared(adam)
    assert live_bytes(held_tensors(step)) == 3 * PARAMETERS + ACTIVATION
    run_step(step)
    scalars = 3 * 4  # Adam's step counts
    assert live_bytes(held_tensors(step)) == 9 * PARAMETERS + ACTIVATION + scalars


def test_a_storage_counts_once_however_many_views_it_has():
    base = torch.ones(100)
    assert live_bytes([base, base[:10], base.view(10, 10)]) == 400


def test_plain_tensor_attributes_count():
    step = prepared(adam)
    step.model.mask = torch.ones(1000)
    assert live_bytes(held_tensors(step)) == 3 * PARAMETERS + ACTIVATION + 4000


def test_peak_of_sgd_is_parameters_and_gradients():
    """In the last part of backward: parameters, all gradients, the batch and at most a handful of activations."""
    peak = peak_of_one_step(prepared(lambda model: torch.optim.SGD(model.parameters(), lr=0.1)))
    assert 6 * PARAMETERS + ACTIVATION <= peak <= 6 * PARAMETERS + 6 * ACTIVATION


def test_peak_of_adam_is_in_the_optimizer():
    """Parameters, gradients, two states; and for one parameter sqrt(v), its quotient and the previous one's."""
    step = prepared(adam)
    for _ in ("first", "steady"):
        assert 0 < peak_of_one_step(step) - (15 * PARAMETERS + ACTIVATION) < 1024  # scalars


def test_recording_is_quiet_and_leaves_the_environment_alone():
    # In a process of its own: kineto reads its log level once, at the first profile of a process.
    script = """
import os, torch
from advisor.measure.backends.cpu import BACKEND
from advisor.workload.spec import Workload
from advisor.workload.step import prepare, run_step
workload = Workload(
    build_model=lambda: torch.nn.Linear(4, 4),
    make_batch=lambda size: torch.ones(size, 4),
    compute_loss=lambda model, batch: model(batch).sum(),
    make_optimizer=lambda model: torch.optim.Adam(model.parameters()),
)
step = prepare(workload)
before = dict(os.environ)
with BACKEND.recording(step):
    run_step(step)
assert dict(os.environ) == before
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_free_memory_is_less_than_all():
    assert 0 < BACKEND.free_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_description():
    assert BACKEND.describe().startswith("cpu: ")
    assert BACKEND.describe().endswith(f"{torch.get_num_threads()} threads")
