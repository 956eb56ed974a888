"""The tracer against `torch.distributed._tools.MemTracker`, in one run: seconds and peak of two steps.

    python tests/validation/trace_speed.py [--case gpt2] [--case llama-3-8b] [--device-type cpu]

fp32, AdamW with lists of tensors, no dropout. For a CPU both trace the same operators; for CUDA the tracer takes the
kernels of an A100. GPT-2 takes MemTracker about 20 s on two cores, Llama-3-8B about 100 s.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn import functional

from advisor.trace._semantics import target_semantics
from advisor.trace.records import StepTrace, TraceTarget
from advisor.trace.tracer import trace_step
from advisor.workload.spec import Execution, Workload

TARGETS = {
    "cpu": TraceTarget(device_type="cpu"),
    "cuda": TraceTarget(device_type="cuda", compute_capability=(8, 0)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    build_model: Callable[[], nn.Module]
    compute_loss: Callable[[Any, Any], torch.Tensor]
    vocabulary: int
    batch: int
    length: int

    def make_batch(self, size: int) -> torch.Tensor:
        return torch.randint(0, self.vocabulary, (size, self.length))

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), foreach=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    seconds: float
    peak_bytes: int


def gpt2(*, layers: int = 12, batch: int = 4) -> Case:
    """GPT-2, 124 M with 12 layers: transformers' where it is installed, else the same operators in plain modules."""
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError:
        return Case(
            build_model=lambda: PlainGPT2(layers),
            compute_loss=lambda model, tokens: model(tokens),
            vocabulary=50257,
            batch=batch,
            length=1024,
        )
    config = GPT2Config(n_layer=layers, resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0)
    return Case(
        build_model=lambda: GPT2LMHeadModel(config),
        compute_loss=lambda model, tokens: model(input_ids=tokens, labels=tokens).loss,
        vocabulary=50257,
        batch=batch,
        length=1024,
    )


def llama_3_8b() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        use_cache=False,
    )
    return Case(
        build_model=lambda: LlamaForCausalLM(config),
        compute_loss=lambda model, tokens: model(input_ids=tokens, labels=tokens).loss,
        vocabulary=128256,
        batch=1,
        length=8192,
    )


class PlainBlock(nn.Module):
    def __init__(self, width: int = 768) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = (t.unflatten(-1, (12, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class PlainGPT2(nn.Module):
    def __init__(self, layers: int, width: int = 768) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(50257, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(PlainBlock(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 50257, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))[:, :-1].flatten(0, 1)
        return functional.cross_entropy(logits, tokens[:, 1:].flatten())


def by_memtracker(case: Case) -> Outcome:
    """As its documentation has it: build under fake tensors, two steps.

    Under the tracer's CPU semantics, so that transformers takes no row for a packed one: it would look at values, and
    on fake tensors give Llama's attention a mask of length x length.
    """
    start = time.perf_counter()
    tracker = MemTracker()
    with target_semantics(TARGETS["cpu"]), FakeTensorMode():
        model = case.build_model()
        optimizer = case.make_optimizer(model)
        tracker.track_external(model, optimizer)
        with tracker:
            for step in range(2):
                case.compute_loss(model, case.make_batch(case.batch)).backward()
                optimizer.step()
                optimizer.zero_grad()
                if step == 0:
                    tracker.reset_mod_stats()
    seconds = time.perf_counter() - start
    (snapshot,) = tracker.get_tracker_snapshot("peak").values()
    return Outcome(seconds=seconds, peak_bytes=snapshot["Total"])


def by_advisor(case: Case, target: TraceTarget) -> Outcome:
    workload = Workload(
        build_model=case.build_model,
        make_batch=case.make_batch,
        compute_loss=case.compute_loss,
        make_optimizer=case.make_optimizer,
        execution=Execution(micro_batch_size=case.batch),
    )
    start = time.perf_counter()
    trace = trace_step(workload, target)
    return Outcome(seconds=time.perf_counter() - start, peak_bytes=peak_bytes(trace))


def peak_bytes(trace: StepTrace) -> int:
    live = peak = 0
    for event in trace.events:
        live += trace.storages[event.storage].nbytes * (1 if event.is_alloc else -1)
        peak = max(peak, live)
    return peak


CASES = {"gpt2": gpt2, "llama-3-8b": llama_3_8b}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=list(CASES), action="append", dest="cases")
    parser.add_argument("--device-type", choices=list(TARGETS), default="cpu")
    chosen = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    for name in chosen.cases or CASES:
        case = CASES[name]()
        ours, theirs = by_advisor(case, TARGETS[chosen.device_type]), by_memtracker(case)
        sys.stdout.write(
            f"{name}: MemTracker {theirs.seconds:.1f} s, ours {ours.seconds:.1f} s, "
            f"{theirs.seconds / ours.seconds:.1f} times faster; peak {theirs.peak_bytes / 2**30:.3f} GiB, "
            f"ours {ours.peak_bytes / 2**30:.3f} GiB, {ours.peak_bytes / theirs.peak_bytes - 1:+.3%}\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
