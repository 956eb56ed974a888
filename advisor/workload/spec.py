"""`Workload`: how to build the model, the batch, the loss and the optimizer, and how one step is to be executed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

MemoryFormat = Literal["contiguous", "channels_last"]


class Phase(StrEnum):
    """Where in the optimizer step an operator runs."""

    FORWARD = "forward"  # the model and the loss
    BACKWARD = "backward"
    RECOMPUTE = "recompute"  # forward again, inside backward (activation checkpointing)
    OPTIMIZER = "optimizer"  # unscale, clip, step
    ZERO_GRAD = "zero_grad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How one optimizer step runs. Options change it; the tracer and the stopwatch both obey it.

    The plain step: `num_microbatches` times (forward under autocast, loss / num_microbatches, backward), then unscale,
    optimizer step, `zero_grad(set_to_none=True)`.
    """

    micro_batch_size: int = 1
    num_microbatches: int = 1
    autocast_dtype: str | None = None  # "bfloat16" | "float16"
    grad_scaler: bool = False
    allow_tf32: bool = False
    memory_format: MemoryFormat = "contiguous"
    optimizer_in_backward: bool = False
    offload_activations: bool = False  # torch.autograd.graph.save_on_cpu
    offload_optimizer_states: bool = False
    compile: bool = False


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What one training step does, as four functions.

    Args:
        build_model: returns the `nn.Module`, in training mode or not (it is put in training mode).
        make_batch: micro-batch size -> one synthetic batch, any pytree of tensors.
        compute_loss: (model, batch) -> scalar loss.
        make_optimizer: model -> optimizer.
        variants: name -> function building a smaller model.
        name: what the report calls it.
        samples_per_batch_item: 1 unless one row of the batch holds several samples (packing).
        execution: how the step runs; options set it.
    """

    build_model: Callable[[], torch.nn.Module]
    make_batch: Callable[[int], Any]
    compute_loss: Callable[[Any, Any], torch.Tensor]
    make_optimizer: Callable[[Any], torch.optim.Optimizer]
    variants: Mapping[str, Callable[[], torch.nn.Module]] = field(default_factory=dict)
    batches: Callable[[int], Iterable[Any]] | None = None
    evaluate: Callable[[Any], float] | None = None
    name: str = "workload"
    samples_per_batch_item: float = 1.0
    execution: Execution = field(default_factory=Execution)

    def with_execution(self, **changes: Any) -> Workload:
        """A copy whose execution differs in the named fields."""
        return replace(self, execution=replace(self.execution, **changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """Something advisor decided for the user, and the flag that overrides it."""

    what: str  # "batch", "loss", "optimizer", "model"
    chosen: str  # "AdamW(lr=1e-3)"
    why: str
    flag: str  # "--optimizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadDescription:
    """The first lines of every report: what was built, and which of it was guessed. No torch."""

    target: str  # as the user typed it
    model: str  # "GPT(GPTConfig())"
    batch: str
    loss: str
    optimizer: str
    guesses: tuple[Guess, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)  # the file's own ADVISOR
    variants: tuple[str, ...] = ()
    has_batches: bool = False
    has_evaluate: bool = False
    source_hash: str = ""  # SHA-256 over the user's file or config, and the expressions
    versions: Mapping[str, str] = field(default_factory=dict)  # torch, python, transformers, ...
