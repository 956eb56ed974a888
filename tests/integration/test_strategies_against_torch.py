"""The strategies' peak memory and collectives against torch itself: four ranks, one process, on the CPU."""

from collections import Counter
from contextlib import contextmanager, nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from toy_traces import collective_counts, peak_bytes

from advisor import Workload
from advisor.hardware.mesh import Mesh
from advisor.parallel import ddp, fsdp2, hsdp, zero1, zero2
from advisor.trace.records import TraceTarget
from advisor.trace.tracer import trace_step

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

WIDTH, VOCABULARY, LENGTH, BATCH, NUM_BLOCKS = 64, 128, 16, 2, 4
C10D_KINDS = {"_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter", "allreduce_": "all_reduce"}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (linear(y).unsqueeze(1) for linear in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(NUM_BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make_batch(size):
    return torch.randint(0, VOCABULARY, (size, LENGTH)), torch.randint(0, VOCABULARY, (size, LENGTH))


def compute_loss(model, batch):
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def predicted(strategy, mesh, num_microbatches, reshard):
    workload = Workload(
        build_model=Decoder, make_batch=make_batch, compute_loss=compute_loss, make_optimizer=make_optimizer
    ).with_execution(micro_batch_size=BATCH, num_microbatches=num_microbatches)
    trace = trace_step(workload, TraceTarget(device_type="cpu"))
    new = strategy.shard(trace, mesh, reshard_after_forward=reshard)
    return peak_bytes(new), {kind: number for kind, (number, _) in collective_counts(new).items()}


@contextmanager
def process_group(backend, world_size):
    from torch import distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    store = FakeStore() if backend == "fake" else dist.HashStore()
    dist.init_process_group(backend, rank=0, world_size=world_size, store=store)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Counting(torch.utils._python_dispatch.TorchDispatchMode):
    """`CommDebugMode` breaks around several passes; counting the operators is all that is needed."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if kind := C10D_KINDS.get(func._schema.name.removeprefix("c10d::")):
            self.found[kind] += 1
        return func(*args, **(kwargs or {}))


def measured(build, step):
    """Peak of allocated bytes over two steps, and the collectives of the second."""
    from torch.profiler import ProfilerActivity, profile

    counting = Counting()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        state = build()
        step(*state)
        with counting:
            step(*state)
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak, dict(counting.found)


@pytest.mark.parametrize(
    ("strategy", "mesh", "num_microbatches", "reshard"),
    [
        (fsdp2.STRATEGY, Mesh(dp_shard=4), 1, True),
        (fsdp2.STRATEGY, Mesh(dp_shard=4), 1, False),
        (fsdp2.STRATEGY, Mesh(dp_shard=4), 2, True),
        (zero1.STRATEGY, Mesh(dp_shard=4), 2, False),
        (zero2.STRATEGY, Mesh(dp_shard=4), 3, False),
        (hsdp.STRATEGY, Mesh(dp_replicate=2, dp_shard=2), 2, True),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_fully_shard(strategy, mesh, num_microbatches, reshard):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    whole = Decoder()  # before the clock runs: sharding it is no part of a step
    batch = make_batch(BATCH)

    def build():
        return whole, make_optimizer(whole)

    def step(model, optimizer):
        for index in range(num_microbatches):
            is_last = index == num_microbatches - 1
            if strategy is zero1.STRATEGY:
                model.set_requires_gradient_sync(is_last)
            if strategy in (zero1.STRATEGY, zero2.STRATEGY):
                model.set_reshard_after_backward(is_last)
            if strategy is hsdp.STRATEGY:
                model.set_requires_all_reduce(is_last)
            (compute_loss(model, batch) / num_microbatches).backward()
        optimizer.step()
        optimizer.zero_grad()

    with process_group("fake", 4):
        degrees = tuple(mesh.degree(axis) for axis in strategy.axes)
        device_mesh = init_device_mesh("cpu", degrees, mesh_dim_names=strategy.axes)
        for block in whole.blocks:
            fully_shard(block, mesh=device_mesh, reshard_after_forward=reshard)
        fully_shard(whole, mesh=device_mesh)
        held = sum(p.to_local().untyped_storage().nbytes() for p in whole.parameters())
        held += sum(t.untyped_storage().nbytes() for t in batch)
        peak, found = measured(build, step)
    expected_peak, expected = predicted(strategy, mesh, num_microbatches, reshard)
    assert found == expected
    assert held + peak == pytest.approx(expected_peak, abs=64)  # the scalar loss and its like


@pytest.mark.parametrize("num_microbatches", [1, 2])
def test_ddp(num_microbatches):
    """One gloo rank: its buckets are those of any number of ranks."""
    from torch.nn.parallel import DistributedDataParallel

    whole = Decoder()
    batch = make_batch(BATCH)
    held = sum(t.untyped_storage().nbytes() for t in (*whole.parameters(), *batch))

    def build():
        model = DistributedDataParallel(whole, gradient_as_bucket_view=True)
        return model, make_optimizer(model)

    def step(model, optimizer):
        for index in range(num_microbatches):
            with nullcontext() if index == num_microbatches - 1 else model.no_sync():
                (compute_loss(model, batch) / num_microbatches).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=num_microbatches == 1)

    with process_group("gloo", 1):
        peak, _ = measured(build, step)
    expected_peak, expected = predicted(ddp.STRATEGY, Mesh(dp_replicate=4), num_microbatches, True)
    assert expected == {"all_reduce": 1}
    assert held + peak == pytest.approx(expected_peak, rel=1e-3)  # the reducer's own few hundred bytes
