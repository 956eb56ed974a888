"""Replayed traces are those of the whole model, record by record, or they are refused and the whole model is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from advisor.options.checkpointing import OPTION as CHECKPOINTING
from advisor.trace import tracer
from advisor.trace._replay import ReplayInvalidError
from advisor.trace.records import StepTrace, TraceTarget
from advisor.workload.spec import Execution, Workload

CUDA = TraceTarget(device_type="cuda", compute_capability=(8, 0))
WIDTH, LENGTH, BLOCKS = 16, 8, 9  # of nine blocks three are written down, not run


def canonical(trace: StepTrace) -> tuple[list[Any], list[Any]]:
    """Events and operators with storages numbered by first appearance."""
    number: dict[int, int] = {}
    events = []
    for event in trace.events:
        storage = trace.storages[event.storage]
        index = number.setdefault(event.storage, len(number))
        events.append((event.position, index, event.is_alloc, storage.nbytes, storage.category, storage.module,
                       storage.persistent, storage.on_host, storage.parameter))  # fmt: skip
    ops = [
        (op.name, op.phase, op.module, op.microbatch, op.flops, op.attributes)
        + tuple(tuple((number[r.storage], r.shape, r.dtype, r.strides) for r in refs) for refs in (op.inputs, op.outputs))
        for op in trace.ops
    ]
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


def assert_traced_whole(workload: Workload, reason: str) -> None:
    with pytest.raises(ReplayInvalidError, match=reason):
        tracer._trace(workload, CUDA, replay=True)
    assert_same(tracer.trace_step(workload, CUDA), tracer._trace(workload, CUDA, replay=False))


class Block(nn.Module):
    def __init__(self, layer_idx: int = 0) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def attend(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        heads = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(*heads, attn_mask=mask, is_causal=mask is None)
        return x + self.out(attended.transpose(1, 2).flatten(2))

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.feed(self.attend(x))


class GPT(nn.Module):
    def __init__(self, block: Callable[[int], nn.Module] = Block, blocks: int = BLOCKS) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, WIDTH)
        self.blocks = nn.ModuleList(block(index) for index in range(blocks))
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
        make_optimizer=lambda model: torch.optim.AdamW(model.parameters()),
        execution=Execution(micro_batch_size=2, **execution),
    )


# ---- equal --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "execution",
    [
        {},
        {"autocast_dtype": "bfloat16"},
        {"autocast_dtype": "float16", "grad_scaler": True, "num_microbatches": 4},
    ],
    ids=["fp32", "bf16", "fp16-accumulated"],
)
def test_a_gpt(execution: dict[str, Any]) -> None:
    trace = assert_replayed(workload(**execution))
    assert {op.module.split(".")[1] for op in trace.ops if op.module.startswith("blocks.")} == set("012345678")


def test_on_the_cpu() -> None:
    assert_replayed(workload(), TraceTarget(device_type="cpu"))


@pytest.mark.parametrize("value", ["all", "selective"])
def test_checkpointed_blocks(value: str) -> None:
    assert_replayed(CHECKPOINTING.apply(workload(autocast_dtype="bfloat16"), value))


def test_every_other_block_checkpointed_is_traced_whole() -> None:
    assert_same(
        tracer.trace_step(CHECKPOINTING.apply(workload(), "every-2"), CUDA),
        tracer._trace(CHECKPOINTING.apply(workload(), "every-2"), CUDA, replay=False),
    )


def test_a_transformer_encoder() -> None:
    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, batch_first=True)
        return nn.Sequential(nn.Embedding(32, WIDTH), nn.TransformerEncoder(layer, BLOCKS, enable_nested_tensor=False))

    assert_replayed(
        Workload(
            build_model=build,
            make_batch=lambda size: torch.zeros(size, LENGTH, dtype=torch.int64),
            compute_loss=lambda model, tokens: model(tokens).square().mean(),
            make_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            execution=Execution(micro_batch_size=2, autocast_dtype="bfloat16"),
        )
    )


class MaskFirst(Block):
    def forward(self, mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return self.feed(self.attend(x, mask))


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


class Twice(GPT):
    """The chain runs twice in each forward, as in a recurrent-depth model."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return super().run(super().run(x))


def test_a_chain_called_twice() -> None:
    assert_replayed(workload(Twice))


class TwoStreams(Block):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        return self.attend(x), self.feed(y + x)


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
        parameter.requires_grad = parameter.shape[0] == 3 * WIDTH
    return model


def test_mostly_frozen_blocks() -> None:
    """As in a fine-tune: block 0's input needs no gradient, the later ones' do."""
    assert_replayed(workload(_frozen))


def test_a_block_with_a_buffer_it_writes() -> None:
    class Normed(Block):
        def __init__(self, index: int) -> None:
            super().__init__(index)
            self.norm = nn.BatchNorm1d(LENGTH)  # type: ignore[assignment]

    assert_replayed(workload(lambda: GPT(Normed)))


# ---- refused, and whole -------------------------------------------------------------------------------------------


class Auxiliary(Block):
    """Leaves a loss on itself, as routers of experts do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attend(x)
        self.auxiliary = x.square().mean()
        return self.feed(x)


class Leaking(GPT):
    def __init__(self) -> None:
        super().__init__(Auxiliary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        loss = super().forward(tokens)
        return loss + sum(block.auxiliary for block in self.blocks)  # type: ignore[operator, misc]


def test_an_inner_tensor_in_the_loss() -> None:
    assert_traced_whole(workload(Leaking), "auxiliary")


class Remembering(Block):
    """Keeps its last input's statistics until the next step; nobody reads them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attend(x)
        self.last = x.detach().square()
        return self.feed(x)


def test_an_inner_tensor_that_stays() -> None:
    assert_traced_whole(workload(lambda: GPT(Remembering)), "leaves something behind")


def _shared_in_chain() -> nn.Module:
    model = GPT()
    for block in model.blocks:
        block.out.weight = model.blocks[0].out.weight  # type: ignore[union-attr]
    return model


def _shared_with_the_outside() -> nn.Module:
    model = GPT()
    model.extra = nn.Linear(WIDTH, WIDTH)
    model.extra.weight = model.blocks[4].out.weight  # type: ignore[union-attr, assignment]
    return model


@pytest.mark.parametrize("build", [_shared_in_chain, _shared_with_the_outside])
def test_shared_parameters(build: Callable[[], nn.Module]) -> None:
    assert_same(tracer.trace_step(workload(build), CUDA), tracer._trace(workload(build), CUDA, replay=False))


class AllStates(GPT):
    def run(self, x: torch.Tensor) -> torch.Tensor:
        states = []
        for block in self.blocks:
            x = block(x)
            states.append(x)
        return torch.stack(states).mean(0)


def test_hidden_states_of_all_layers() -> None:
    assert_traced_whole(workload(AllStates), "read outside")


class Biased(GPT):
    """A learnt bias on the scores goes to every block: its gradient is a sum over the blocks."""

    def __init__(self) -> None:
        super().__init__(MaskFirst)
        self.bias = nn.Parameter(torch.zeros(LENGTH, LENGTH))

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(self.bias, x)
        return x


def test_a_bias_with_a_gradient_from_every_block() -> None:
    assert_traced_whole(workload(Biased), "needs a gradient")


class Alternating(Block):
    """Every second layer does less; only the layer's number says so."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.feed(self.attend(x)) if self.layer_idx % 2 else self.feed(x)


def test_blocks_that_differ_by_their_number() -> None:
    assert_traced_whole(workload(lambda: GPT(Alternating)), "blocks differ")


class LateScale(Block):
    """Equal operators in forward, another one in backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        if self.layer_idx == BLOCKS - 3:
            x.register_hook(lambda grad: grad * 2)
        return x


def test_blocks_that_differ_in_backward() -> None:
    assert_traced_whole(workload(lambda: GPT(LateScale)), "differ|interleaved")


class Skipping(GPT):
    def run(self, x: torch.Tensor) -> torch.Tensor:
        for index, block in enumerate(self.blocks):
            x = block(x) if index != 4 else x
        return x


def test_a_block_that_is_not_called() -> None:
    assert_traced_whole(workload(Skipping), "one after another")


def test_an_optimizer_that_steps_from_hooks() -> None:
    hooked = workload(optimizer_in_backward=True)
    assert_same(tracer.trace_step(hooked, CUDA), tracer._trace(hooked, CUDA, replay=False))


def test_the_model_gets_its_methods_back() -> None:
    models: list[nn.Module] = []

    def build() -> nn.Module:
        models.append(GPT())
        return models[-1]

    tracer._trace(workload(build), CUDA, replay=True)
    assert not any("forward" in block.__dict__ for block in models[0].blocks)  # type: ignore[union-attr]
