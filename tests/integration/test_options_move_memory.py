"""The traced peak moves with an option as the peak of a real step does, on the CPU, where every allocation is seen."""

from functools import cache, partial

import pytest
import torch
from fabricated_facts import some_facts
from small_workloads import convnet, gpt, mlp
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

from advisor.discovery import discover
from advisor.options.base import Option
from advisor.trace.records import Category, StepTrace, TraceTarget
from advisor.trace.tracer import trace_step
from advisor.workload.spec import Workload
from advisor.workload.step import prepare, run_step

OPTIONS = discover("advisor.options", "OPTION", Option)
CPU = TraceTarget(device_type="cpu")
A100 = TraceTarget(device_type="cuda", compute_capability=(8, 0))

# The trace sees these as one kernel: our own operators, and those that may end in oneDNN, whose scratch and layout
# copies depend on the instruction set of the processor the test happens to run on.
ONE_KERNEL = ("advisor", "aten::convolution", "aten::mkldnn_convolution", "aten::addmm", "aten::mm", "aten::bmm")

# What a real checkpoint keeps in host memory beside the activations: the state of the random number generator.
RNG_STATE_BYTES = torch.get_rng_state().nbytes


def real_peak_bytes(workload: Workload) -> int:
    """Largest sum of live tensor bytes over building and two steps, from the allocator's own events."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        step = prepare(workload)
        for _ in range(2):
            run_step(step)
    changes: list[tuple[int, int]] = []
    _collect(profiler.profiler.kineto_results.experimental_event_tree(), changes)
    live = peak = 0
    for _, change in sorted(changes):
        live += change
        peak = max(peak, live)
    return peak


def _collect(events, changes: list[tuple[int, int]]) -> None:
    """(time, bytes) of each allocation; of what is one kernel to the trace, only what it leaves."""
    for event in events:
        if event.tag == _EventType.Allocation:
            changes.append((event.start_time_ns, event.extra_fields.alloc_size))
        elif event.name.startswith(ONE_KERNEL):
            inside: list[tuple[int, int]] = []
            _collect(event.children, inside)
            changes.append((event.end_time_ns, sum(change for _, change in inside)))
        else:
            _collect(event.children, changes)


def traced_peak_bytes(trace: StepTrace) -> int:
    live = peak = 0
    for event in trace.events:
        storage = trace.storages[event.storage]
        if not storage.on_host:
            live += storage.nbytes if event.is_alloc else -storage.nbytes
            peak = max(peak, live)
    return peak


WORKLOADS = {"gpt": partial(gpt, layers=3), "mlp": mlp, "convnet": convnet}


@cache
def as_it_is(name: str) -> tuple[int, int]:
    workload = WORKLOADS[name]()
    return real_peak_bytes(workload), traced_peak_bytes(trace_step(workload, CPU))


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_step_as_it_is(name):
    real, traced = as_it_is(name)
    assert traced == pytest.approx(real, rel=0.01)


@pytest.mark.parametrize(
    ("name", "option", "value", "moves"),
    [
        ("gpt", "checkpointing", "all", -1),
        ("gpt", "checkpointing", "every-2", -1),
        ("gpt", "checkpointing", "selective", -1),
        ("gpt", "precision", "amp-bf16", -1),
        ("gpt", "precision", "bf16", -1),
        ("gpt", "loss", "chunked", -1),
        ("gpt", "lora", "r4", -1),
        ("gpt", "lora", "qlora-r4", -1),
        ("gpt", "packing", "fill-0.5", 0),
        ("mlp", "precision", "tf32", 0),
        ("mlp", "precision", "bf16-kahan", -1),
        ("mlp", "optimizer", "foreach", +1),
        ("mlp", "optimizer", "fused", -1),
        ("mlp", "optimizer", "for-loop", 0),
        ("mlp", "optimizer_state", "adam-8bit", -1),
        ("mlp", "optimizer_state", "adam-4bit", -1),
        ("mlp", "optimizer_state", "adam-fp8", -1),
        ("mlp", "optimizer_state", "adafactor", -1),
        ("mlp", "optimizer_in_backward", "on", -1),
        ("convnet", "memory_format", "channels_last", 0),
    ],
)
def test_moves_as_the_real_step_does(name, option, value, moves):
    real, traced = as_it_is(name)
    workload = OPTIONS[option].apply(WORKLOADS[name](), value)
    real_change = real_peak_bytes(workload) - real
    change = traced_peak_bytes(trace_step(workload, CPU)) - traced
    slack = 0.02 * abs(real_change) + 0.001 * real
    if option == "checkpointing":
        slack += 3 * RNG_STATE_BYTES
    assert change == pytest.approx(real_change, abs=slack)
    assert moves * change > 0 or (moves == 0 and abs(change) < 0.01 * traced)


def test_sdpa_moves_as_the_real_step_does():
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 64, "vocab_size": 64}
    config = {**sizes, "attn_pdrop": 0.0, "use_cache": False}  # the CPU has no fused attention with dropout

    def build_model():
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**config, attn_implementation="eager"))

    eager = Workload(
        build_model=build_model,
        make_batch=lambda size: torch.zeros(size, 64, dtype=torch.int64),
        compute_loss=lambda model, tokens: model(input_ids=tokens, labels=tokens).loss,
        make_optimizer=lambda model: torch.optim.SGD(model.parameters()),
    ).with_execution(micro_batch_size=4)
    facts = some_facts(trace_step(eager, A100))
    assert OPTIONS["attention"].values(facts) == ("as-written", "sdpa")
    sdpa = OPTIONS["attention"].apply(eager, "sdpa")
    real_change = real_peak_bytes(sdpa) - real_peak_bytes(eager)
    change = traced_peak_bytes(trace_step(sdpa, CPU)) - traced_peak_bytes(trace_step(eager, CPU))
    assert change < 0
    assert change == pytest.approx(real_change, rel=0.05)


def test_a_variant_takes_what_it_takes():
    workload = gpt(layers=4)
    smaller = OPTIONS["variant"].apply(
        Workload(**{**vars(workload), "variants": {"half-depth": gpt(layers=2).build_model}}), "half-depth"
    )
    assert traced_peak_bytes(trace_step(smaller, CPU)) == traced_peak_bytes(trace_step(gpt(layers=2), CPU))


def test_offloading_takes_activations_off_the_device():
    plain = trace_step(gpt(), A100)
    offloaded = trace_step(OPTIONS["offload_activations"].apply(gpt(), "on"), A100)
    on_host = sum(s.nbytes for s in offloaded.storages if s.on_host)
    kept = sum(s.nbytes for s in plain.storages if s.category is Category.ACTIVATION)
    assert on_host > 0.5 * kept
    assert traced_peak_bytes(offloaded) < traced_peak_bytes(plain)


def test_offloading_takes_optimizer_states_off_the_device():
    plain, offloaded = (trace_step(OPTIONS["offload_optimizer"].apply(mlp(), value), A100) for value in ("off", "on"))
    states = [s for s in offloaded.storages if s.category is Category.OPTIMIZER_STATE]
    assert all(s.on_host for s in states)
    assert sum(s.nbytes for s in states) >= 8 * offloaded.num_parameters
    assert traced_peak_bytes(plain) - traced_peak_bytes(offloaded) >= 8 * offloaded.num_parameters
