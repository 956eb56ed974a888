"""Traces of small steps against hand counts and against the same steps run for real."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.errors import TraceError
from advisor.options.checkpointing import OPTION as CHECKPOINTING
from advisor.trace.records import BlockChain, Category, OpRecord, Phase, StepTrace, TraceTarget
from advisor.trace.tracer import trace_step
from advisor.workload.spec import Execution, Workload
from advisor.workload.step import prepare, run_step

CPU = TraceTarget(device_type="cpu")
CUDA = TraceTarget(device_type="cuda", compute_capability=(8, 0))


def workload(
    build: Callable[[], nn.Module],
    shape: tuple[int, ...] = (4,),
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    **execution: Any,
) -> Workload:
    return Workload(
        build_model=build,
        make_batch=lambda size: torch.ones(size, *shape),
        compute_loss=loss or (lambda model, batch: model(batch).sum()),
        make_optimizer=optimizer or (lambda model: torch.optim.AdamW(model.parameters())),
        execution=Execution(micro_batch_size=3, **execution),
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 2, bias=False))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
    )


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        shares = functional.dropout((q @ k.mT).softmax(-1), 0.1)
        return x + self.out((shares @ v).transpose(1, 2).flatten(2))


# ---- memory -------------------------------------------------------------------------------------------------------


def peak_bytes(trace: StepTrace) -> int:
    """Most bytes held in the steady step."""
    return max(live for position, live in live_bytes(trace) if position >= trace.steady_start)


def held_after(trace: StepTrace, op: int) -> int:
    """Bytes held once operator `op` of the steady step has run."""
    return [live for position, live in live_bytes(trace) if position <= trace.steady_start + op][-1]


def live_bytes(trace: StepTrace) -> Iterator[tuple[int, int]]:
    """Bytes held after each event."""
    live = 0
    for event in trace.events:
        live += trace.storages[event.storage].nbytes * (1 if event.is_alloc else -1)
        yield event.position, live


class Watch(TorchDispatchMode):
    """Bytes of all storages met that are alive, in a real run."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._met: dict[int, object] = {}
        for tensor in known:
            self._follow(tensor)

    def _follow(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._met:
            self._met[storage._cdata] = weakref.finalize(storage, self._died, storage._cdata, storage.nbytes())
            self.live += storage.nbytes()
            self.peak = max(self.peak, self.live)

    def _died(self, key: int, nbytes: int) -> None:
        del self._met[key]
        self.live -= nbytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        pytree.tree_map_only(torch.Tensor, self._follow, result)
        return result


def real_peak(workload: Workload) -> int:
    """Peak of the second step, run on the CPU."""
    prepared = prepare(workload)
    model = prepared.model
    with Watch([*model.parameters(), *model.buffers(), prepared.batch]) as watch:
        run_step(prepared)
        watch.peak = watch.live
        run_step(prepared)
    return watch.peak


@pytest.mark.parametrize(
    ("build", "shape", "execution"),
    [
        (mlp, (4,), {}),
        (cnn, (2, 8, 8), {}),
        (Attention, (6, 16), {}),
        (Attention, (6, 16), {"autocast_dtype": "bfloat16", "num_microbatches": 2}),
        (cnn, (2, 8, 8), {"memory_format": "channels_last"}),
        (mlp, (4,), {"optimizer_in_backward": True}),
    ],
    ids=["mlp", "cnn", "attention", "attention-bf16-accumulated", "cnn-channels-last", "mlp-optimizer-in-backward"],
)
def test_peak_of_a_cpu_trace_is_that_of_the_real_step(
    build: Callable[[], nn.Module], shape: tuple[int, ...], execution: dict[str, Any]
) -> None:
    job = workload(build, shape, **execution)
    assert peak_bytes(trace_step(job, CPU)) == real_peak(job)


def test_bytes_of_an_mlp_by_hand() -> None:
    trace = trace_step(workload(mlp, optimizer=lambda model: torch.optim.SGD(model.parameters(), momentum=0.9)), CPU)
    held = {
        category: sum(s.nbytes for s in trace.storages if s.category is category and s.persistent)
        for category in Category
    }
    weights = 4 * (4 * 8 + 8 * 2)
    assert held[Category.PARAMETER] == held[Category.OPTIMIZER_STATE] == weights
    ops = list(trace.steady_ops())
    relu = next(i for i, op in enumerate(ops) if op.name == "aten.relu.default")
    step = next(i for i, op in enumerate(ops) if op.phase is Phase.OPTIMIZER)
    # Weights and momentum; the batch, hidden and its ReLU.
    assert held_after(trace, relu) == 2 * weights + 4 * (3 * 4 + 3 * 8 + 3 * 8)
    # Gradients too; the batch and the loss.
    assert held_after(trace, step) == 3 * weights + 4 * (3 * 4 + 1)
    # The end: gradients and the loss are gone.
    assert held_after(trace, len(ops)) == 2 * weights + 4 * (3 * 4)


def test_the_steady_step_takes_no_new_optimizer_state() -> None:
    trace = trace_step(workload(mlp), CUDA)
    made = [
        event.position
        for event in trace.events
        if event.is_alloc and trace.storages[event.storage].category is Category.OPTIMIZER_STATE
    ]
    assert len(made) == 6  # two moments and a step count for each of two weights
    assert max(made) < trace.steady_start
    counts = [s for s in trace.storages if s.category is Category.OPTIMIZER_STATE and s.nbytes == 4]
    assert len(counts) == 2
    assert all(s.on_host for s in counts)  # not fused: the step counts are CPU scalars
    fused = trace_step(workload(mlp, optimizer=lambda model: torch.optim.AdamW(model.parameters(), fused=True)), CUDA)
    assert not any(s.on_host for s in fused.storages)
    assert [op.name for op in fused.steady_ops() if "_fused_adamw_" in op.name] == ["aten._fused_adamw_.default"]


def test_gradients_know_their_parameters() -> None:
    trace = trace_step(workload(mlp), CUDA)
    gradients = [s for s in trace.storages if s.category is Category.GRADIENT]
    once = [(0, "0", 128), (1, "2", 64)]
    assert sorted((s.parameter, s.module, s.nbytes) for s in gradients) == sorted(2 * once)  # two steps


class InPlace(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).view(-1).relu_().view(3, 8).t()


def test_views_and_in_place_operators_take_nothing() -> None:
    trace = trace_step(workload(lambda: InPlace(4, 8)), CPU)
    forward = [op for op in trace.steady_ops() if op.phase is Phase.FORWARD]
    assert [op.name for op in forward] == ["aten.addmm.default", "aten.relu_.default", "aten.sum.default"]
    product, relu, _ = forward
    assert relu.inputs[0].storage == relu.outputs[0].storage == product.outputs[0].storage


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 6), nn.Linear(6, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens.long()))


def test_tied_weights_appear_once() -> None:
    trace = trace_step(workload(Tied), CUDA)
    assert [(p.name, p.shape) for p in trace.parameters] == [("embed.weight", (10, 6))]
    assert sum(s.nbytes for s in trace.storages if s.category is Category.PARAMETER) == trace.num_parameters * 4 == 240


def test_offloaded_activations_wait_on_the_host() -> None:
    kept, offloaded = (
        trace_step(workload(cnn, (2, 8, 8), offload_activations=offload), CUDA) for offload in (False, True)
    )
    assert not any(s.on_host and s.category is Category.ACTIVATION for s in kept.storages)
    waiting = [s for s in offloaded.storages if s.on_host and s.category is Category.ACTIVATION]
    convolution = next(op for op in kept.ops if op.name == "aten.convolution.default")
    assert max(s.nbytes for s in waiting) == convolution.outputs[0].nbytes


# ---- names and phases ---------------------------------------------------------------------------------------------


def by_name(trace: StepTrace, name: str) -> list[OpRecord]:
    return [op for op in trace.steady_ops() if op.name.startswith(f"aten.{name}.")]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.SiLU()) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.down(self.act(self.up(x))) * 2
        for block in self.blocks:
            x = block(x)
        return x


def test_operators_belong_to_modules_and_phases() -> None:
    trace = trace_step(workload(Net), CUDA)
    forward, backward = by_name(trace, "gelu"), by_name(trace, "gelu_backward")
    assert [(op.module, op.phase) for op in forward] == [("act", Phase.FORWARD)]
    assert [(op.module, op.phase) for op in backward] == [("act", Phase.BACKWARD)]
    assert [op.module for op in by_name(trace, "native_layer_norm_backward")] == [f"blocks.{i}.0" for i in (2, 1, 0)]
    products = [op.module for op in by_name(trace, "mm")]
    # Two for each linear; the input needs no gradient.
    assert products == [*(f"blocks.{i}.1" for i in (2, 2, 1, 1, 0, 0)), "down", "down", "up"]
    assert {op.module for op in by_name(trace, "mul")} == {""}
    assert {op.phase for op in trace.steady_ops()} == {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}


def test_recomputation_is_labelled_and_its_activations_too() -> None:
    trace = trace_step(CHECKPOINTING.apply(workload(Net), "all"), CUDA)
    again = [op for op in trace.steady_ops() if op.phase is Phase.RECOMPUTE]
    # torch stops once the last tensor that backward needs is there: SiLU, which saves its input, is not run.
    assert [(op.module, op.name) for op in again] == [
        (f"blocks.{i}.{child}", name)
        for i in (2, 1, 0)
        for child, name in ((0, "aten.native_layer_norm.default"), (1, "aten.addmm.default"))
    ]
    categories = {trace.storages[op.outputs[0].storage].category for op in again}
    assert categories == {Category.ACTIVATION}


def test_the_second_microbatch_stands_for_the_rest() -> None:
    trace = trace_step(workload(mlp, num_microbatches=5), CUDA)
    first, second = ([op for op in trace.steady_ops() if op.microbatch == i and op.flops] for i in (0, 1))
    assert [(op.name, op.phase, op.module) for op in first] == [(op.name, op.phase, op.module) for op in second]
    assert (trace.num_microbatches, trace.repeats(first[0]), trace.repeats(second[0])) == (5, 1, 4)
    assert trace.flops_per_step() == 5 * sum(op.flops for op in first)
    added = [op for op in trace.steady_ops() if op.name == "aten.add_.Tensor" and op.phase is Phase.BACKWARD]
    assert [(op.module, op.microbatch) for op in added] == [("2", 1), ("0", 1)]  # gradients are added in place
    assert {op.microbatch for op in trace.steady_ops() if op.phase is Phase.OPTIMIZER} == {0}


def test_a_grad_scaler_scales_unscales_and_updates() -> None:
    trace = trace_step(workload(mlp, autocast_dtype="float16", grad_scaler=True), CUDA)
    names = [op.name.removeprefix("aten.") for op in trace.steady_ops() if op.phase is Phase.OPTIMIZER]
    assert names.index("_amp_foreach_non_finite_check_and_unscale_.default") < names.index(
        "_foreach_addcdiv_.ScalarList"
    )
    assert names[-1] == "_amp_update_scale_.default"


def test_what_a_trace_says_of_the_model() -> None:
    trace = trace_step(workload(Net), CUDA)
    assert trace.block_chains == (BlockChain(("blocks.0", "blocks.1", "blocks.2"), "Sequential"),)
    modules = {module.name: module for module in trace.modules}
    assert (modules["up"].type_name, modules["up"].num_parameters) == ("Linear", 40)
    assert dict(modules["up"].attributes) == {"in_features": 4, "out_features": 8}
    assert trace.optimizer.type_name == "AdamW"
    assert (trace.optimizer.betas, trace.optimizer.weight_decay) == ((0.9, 0.999), 0.01)
    assert trace.tokens_per_sample is None


def test_tokens_are_the_length_of_an_integer_row() -> None:
    job = workload(Tied)
    tokens = Workload(
        build_model=job.build_model,
        make_batch=lambda size: {"mask": torch.ones(size, 7), "input_ids": torch.zeros(size, 7, dtype=torch.int64)},
        compute_loss=lambda model, batch: model(batch["input_ids"]).sum(),
        make_optimizer=job.make_optimizer,
    )
    assert trace_step(tokens, CUDA).tokens_per_sample == 7


def test_two_traces_are_equal() -> None:
    job = workload(lambda: nn.Sequential(Attention(), Attention()), (6, 16), autocast_dtype="bfloat16")
    assert trace_step(job, CUDA) == trace_step(job, CUDA)


# ---- errors -------------------------------------------------------------------------------------------------------


class Branching(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        if x.mean().item() > 0:
            x = x * 2
        return x


class Selecting(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        return x[x > 0]


class WrongShapes(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        return x @ x


@pytest.mark.parametrize(
    ("kind", "line", "says"),
    [
        (Branching, "x.mean().item() > 0", "depends on a value"),
        (Selecting, "return x[x > 0]", "depends on a value"),
        (WrongShapes, "return x @ x", "RuntimeError"),
    ],
)
def test_a_step_that_cannot_be_traced_names_the_line(kind: type[nn.Linear], line: str, says: str) -> None:
    source, first = inspect.getsourcelines(kind)
    number = first + next(i for i, text in enumerate(source) if line in text)
    with pytest.raises(TraceError, match=says) as caught:
        trace_step(workload(lambda: kind(4, 8)), CUDA)
    assert f"{Path(__file__).name}:{number}" in str(caught.value)
    assert line in str(caught.value)
    assert caught.value.hint


def test_an_error_in_a_chain_of_blocks_is_the_users_too() -> None:
    """A chain that is replayed is traced once more without, and the error is the model's."""

    def loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).sum() / model.nothing

    job = workload(lambda: nn.Sequential(*(nn.Linear(4, 4) for _ in range(9))), loss=loss)
    with pytest.raises(TraceError, match="AttributeError: 'Sequential' object has no attribute 'nothing'") as caught:
        trace_step(job, CUDA)
    assert Path(__file__).name in str(caught.value)


@pytest.mark.parametrize(
    ("make", "states"),
    [(torch.optim.NAdam, 2), (torch.optim.RAdam, 2), (torch.optim.Adamax, 2), (torch.optim.ASGD, 1)],
)
def test_optimizers_that_compute_with_their_step_count_are_traced(
    make: type[torch.optim.Optimizer], states: int
) -> None:
    trace = trace_step(workload(mlp, optimizer=lambda model: make(model.parameters(), lr=0.1)), CUDA)
    kept = [s for s in trace.storages if s.category is Category.OPTIMIZER_STATE and s.nbytes > 8]  # no counters
    assert sum(s.nbytes for s in kept) == states * (4 * 8 + 8 * 2) * 4


def test_a_reference_cycle_dies_with_its_phase() -> None:
    """Python's collector is off while a step is traced, and called between phases."""

    class Holder:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor, self.me = tensor, self

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        Holder(torch.empty(1000))
        return model(batch).sum()  # type: ignore[no-any-return]

    trace = trace_step(workload(mlp, loss=loss), CPU)
    backward = next(i for i, op in enumerate(trace.ops) if op.phase is Phase.BACKWARD)
    [(first, *_), *_] = [[e.position for e in trace.events if e.storage == i and not e.is_alloc]
                         for i, s in enumerate(trace.storages) if s.nbytes == 4000]  # fmt: skip
    assert first == backward


class Padding(StrEnum):
    SAME = "same"


class Padded(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 8)
        self.padding = Padding.SAME
        self.label = "plain"


def test_values_of_the_users_own_types_stay_behind() -> None:
    # The parent process unpickles the records, and knows neither the user's modules nor numpy.
    trace = trace_step(workload(Padded), CUDA)
    assert dict(trace.modules[0].attributes) == {"in_features": 4, "out_features": 8, "label": "plain"}
