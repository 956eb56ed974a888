"""Replayed traces are those of the whole model, record by record, or they are refused and the whole model is traced."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from advisor.options.checkpointing import OPTION as CHECKPOINTING
from advisor.trace import tracer
from advisor.trace._recorder import Recorder
from advisor.trace._replay import BlockReplayer, ReplayInvalidError
from advisor.trace.records import Phase, StepTrace, TraceTarget
from advisor.workload.blocks import repeated_blocks
from advisor.workload.spec import Execution, Workload
from advisor.workload.step import OptimizerInBackward
from advisor.workload.techniques.checkpointing import checkpoint_blocks

CUDA = TraceTarget(device_type="cuda", compute_capability=(8, 0))
WIDTH, LENGTH, BLOCKS = 16, 8, 8  # of eight blocks two are written down, not run


def canonical(trace: StepTrace) -> tuple[list[Any], list[Any]]:
    """Events and operators with storages numbered by first appearance."""
    number: dict[int, int] = {}
    events = []
    for event in trace.events:
        storage = trace.storages[event.storage]
        index = number.setdefault(event.storage, len(number))
        events.append((event.position, index, event.is_alloc, storage.nbytes, storage.category, storage.module,
                       storage.persistent, storage.on_host, storage.parameter))  # fmt: skip
    ops = []
    for op in trace.ops:
        inputs, outputs = (
            [(number[ref.storage], ref.shape, ref.dtype, ref.strides) for ref in refs]
            for refs in (op.inputs, op.outputs)
        )
        ops.append((op.name, op.phase, op.module, op.microbatch, op.flops, op.attributes, inputs, outputs))
    return events, ops


def assert_same(trace: StepTrace, full: StepTrace) -> None:
    events, ops = canonical(trace)
    full_events, full_ops = canonical(full)
    assert ops == full_ops
    assert events == full_events
    assert trace.steady_start == full.steady_start
    assert trace.parameters == full.parameters
    assert trace.modules == full.modules


def assert_replayed(workload: Workload, target: TraceTarget = CUDA) -> StepTrace:
    replayed = tracer._trace(workload, target, replay=True)
    full = tracer._trace(workload, target, replay=False)
    assert_same(replayed, full)
    return replayed


def assert_traced_whole(workload: Workload, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay gives up for `reason`, and the answer is the trace of the whole model."""
    attempts: list[object] = []
    trace = tracer._trace

    def spy(workload: Workload, target: TraceTarget, *, replay: bool) -> StepTrace:
        try:
            attempts.append((replay, trace(workload, target, replay=replay)))
        except ReplayInvalidError as error:
            attempts.append((replay, str(error)))
            raise
        return attempts[-1][1]

    monkeypatch.setattr(tracer, "_trace", spy)
    result = tracer.trace_step(workload, CUDA)
    (first_replays, why), (second_replays, full) = attempts
    assert first_replays
    assert re.search(reason, why), why
    assert not second_replays
    assert result is full


class Block(nn.Module):
    def __init__(self, layer_idx: int = 0) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Attending(Block):
    def __init__(self, layer_idx: int = 0) -> None:
        super().__init__(layer_idx)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        heads = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(*heads, attn_mask=mask, is_causal=mask is None)
        return super().forward(x + attended.transpose(1, 2).flatten(2))


class GPT(nn.Module):
    def __init__(self, block: Callable[[int], nn.Module] = Block) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, WIDTH)
        self.blocks = nn.ModuleList(block(index) for index in range(BLOCKS))
        self.head = nn.Linear(WIDTH, 32, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.run(self.tokens(tokens))
        return functional.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def workload(build: Callable[[], nn.Module] = GPT, **execution: Any) -> Workload:
    return Workload(
        build_model=build,
        make_batch=lambda size: torch.zeros(size, LENGTH, dtype=torch.int64),
        compute_loss=lambda model, tokens: model(tokens),
        make_optimizer=lambda model: torch.optim.SGD(model.parameters(), momentum=0.9),
        execution=Execution(micro_batch_size=2, **execution),
    )


# ---- equal --------------------------------------------------------------------------------------------------------


def test_a_gpt() -> None:
    models: list[nn.Module] = []

    def build() -> nn.Module:
        models.append(GPT())
        return models[-1]

    trace = assert_replayed(workload(build))
    assert {op.module.split(".")[1] for op in trace.ops if op.module.startswith("blocks.")} == set("01234567")
    assert not any("forward" in block.__dict__ for block in models[0].blocks)  # they have their methods back


def test_accumulation_in_half_precision() -> None:
    assert_replayed(workload(autocast_dtype="float16", grad_scaler=True, num_microbatches=4))


def test_on_the_cpu() -> None:
    assert_replayed(workload(), TraceTarget(device_type="cpu"))


@pytest.mark.parametrize("value", ["all", "selective"])
def test_checkpointed_blocks(value: str) -> None:
    trace = assert_replayed(CHECKPOINTING.apply(workload(autocast_dtype="bfloat16"), value))
    assert any(op.phase is Phase.RECOMPUTE and op.module == "blocks.4.norm" for op in trace.ops)


@pytest.mark.parametrize("execution", [{}, {"autocast_dtype": "bfloat16", "num_microbatches": 2}])
def test_offloaded_activations(execution: dict[str, Any]) -> None:
    trace = assert_replayed(workload(offload_activations=True, **execution))
    assert any(storage.on_host and storage.module == "blocks.4.norm" for storage in trace.storages)


def test_a_transformer_encoder_in_bfloat16() -> None:
    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, batch_first=True)
        return nn.Sequential(nn.Embedding(32, WIDTH), nn.TransformerEncoder(layer, BLOCKS, enable_nested_tensor=False))

    assert_replayed(
        Workload(
            build_model=build,
            make_batch=lambda size: torch.zeros(size, LENGTH, dtype=torch.int64),
            compute_loss=lambda model, tokens: model(tokens).square().mean(),
            make_optimizer=lambda model: torch.optim.AdamW(model.parameters()),
            execution=Execution(micro_batch_size=2, autocast_dtype="bfloat16"),
        )
    )


class MaskFirst(Attending):
    def forward(self, mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x, mask)


class Masked(GPT):
    """One mask, made once in each step, goes to every block."""

    def __init__(self) -> None:
        super().__init__(MaskFirst)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
        for block in self.blocks:
            x = block(mask, x)
        return x


def test_a_mask_that_all_blocks_share() -> None:
    assert_replayed(workload(Masked))


class TwoStreams(Block):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(x), y + x


class Streams(GPT):
    def __init__(self) -> None:
        super().__init__(TwoStreams)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        for block in self.blocks:
            x, y = block(x, y)
        return x + y


def test_blocks_with_two_outputs() -> None:
    assert_replayed(workload(Streams))


def _frozen() -> nn.Module:
    model = GPT()
    for parameter in model.parameters():
        parameter.requires_grad = parameter.shape == (2 * WIDTH, WIDTH)
    return model


def test_mostly_frozen_blocks() -> None:
    """As in a fine-tune: block 0's input needs no gradient, the later ones' do."""
    assert_replayed(workload(_frozen))


def test_a_block_with_a_buffer_it_writes() -> None:
    class Normed(Block):
        def __init__(self, index: int) -> None:
            super().__init__(index)
            self.norm = nn.BatchNorm1d(LENGTH)

    assert_replayed(workload(lambda: GPT(Normed)))


# ---- refused, and whole -------------------------------------------------------------------------------------------


class Auxiliary(Block):
    """Leaves a loss on itself, as routers of experts do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        self.auxiliary = x.square().mean()
        return x


class Leaking(GPT):
    def __init__(self) -> None:
        super().__init__(Auxiliary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        loss = super().forward(tokens)
        return loss + sum(block.auxiliary for block in self.blocks)


def test_an_inner_tensor_in_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_traced_whole(workload(Leaking), "auxiliary", monkeypatch)


class Remembering(Block):
    """Keeps its last input's statistics until the next step; nobody reads them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        self.last = x.detach().square()
        return x


def test_an_inner_tensor_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_traced_whole(workload(lambda: GPT(Remembering)), "leaves something behind", monkeypatch)


class AllStates(GPT):
    def run(self, x: torch.Tensor) -> torch.Tensor:
        states = []
        for block in self.blocks:
            x = block(x)
            states.append(x)
        return torch.stack(states).mean(0)


def test_hidden_states_of_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_traced_whole(workload(AllStates), "read outside", monkeypatch)


class Shifted(Block):
    def forward(self, bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + bias)


class Biased(GPT):
    """A learnt bias, as of positions, goes to every block: its gradient is a sum over the blocks."""

    def __init__(self) -> None:
        super().__init__(Shifted)
        self.bias = nn.Parameter(torch.zeros(LENGTH, WIDTH))

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(self.bias, x)
        return x


def test_a_bias_with_a_gradient_from_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_traced_whole(workload(Biased), "needs a gradient", monkeypatch)


class Alternating(Block):
    """Every second layer does less; only the layer's number says so."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if self.layer_idx % 2 else super().forward(x.relu())


def test_blocks_that_differ_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_traced_whole(workload(lambda: GPT(Alternating)), "blocks differ", monkeypatch)


class LateScale(Block):
    """Equal operators in forward, another one in backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        if self.layer_idx == BLOCKS - 3:
            x.register_hook(lambda grad: grad * 2)
        return x


def test_blocks_that_differ_in_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_traced_whole(workload(lambda: GPT(LateScale)), "differ|interleaved", monkeypatch)


class Twice(GPT):
    """The chain runs twice in each forward, as in a recurrent-depth model: gradients are sums over both."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return super().run(super().run(x))


def test_a_chain_called_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_traced_whole(workload(Twice), "blocks differ in backward", monkeypatch)


class Hooked(GPT):
    """The model's own hooks may treat one block's tensors unlike another's."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.half(), lambda tensor: tensor.float()):
            return super().run(x)


def test_saved_tensor_hooks_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_traced_whole(workload(Hooked), "saved-tensor hooks", monkeypatch)


class Skipping(GPT):
    def run(self, x: torch.Tensor) -> torch.Tensor:
        for index, block in enumerate(self.blocks):
            x = block(x) if index != 4 else x
        return x


def test_a_block_that_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_traced_whole(workload(Skipping), "one after another", monkeypatch)


# ---- not tried ----------------------------------------------------------------------------------------------------


def _shared_in_the_chain(model: GPT) -> None:
    for block in model.blocks:
        block.down.weight = model.blocks[0].down.weight


def _shared_with_the_outside(model: GPT) -> None:
    model.extra = nn.Linear(2 * WIDTH, WIDTH, bias=False)
    model.extra.weight = model.blocks[4].down.weight


def _stepped_from_hooks(model: GPT) -> None:
    OptimizerInBackward(torch.optim.SGD(model.parameters()))


def _every_other_checkpointed(model: GPT) -> None:
    checkpoint_blocks(model, every=2)


@pytest.mark.parametrize(
    "change", [_shared_in_the_chain, _shared_with_the_outside, _stepped_from_hooks, _every_other_checkpointed]
)
def test_chains_that_are_not_replayed(change: Callable[[GPT], None]) -> None:
    """Their gradients or their code differ from block to block: all of them run, as in a full trace."""
    model = GPT()
    assert len(BlockReplayer(Recorder(FakeTensorMode()), model, repeated_blocks(model))._chains) == 1
    change(model)
    assert BlockReplayer(Recorder(FakeTensorMode()), model, repeated_blocks(model))._chains == []
