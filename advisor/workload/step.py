"""One optimizer step, executed as `Execution` says. The tracer and the stopwatch run this same code.

Plain step: `num_microbatches` times (forward under autocast, loss / num_microbatches, backward), then unscale,
optimizer step, `zero_grad(set_to_none=True)`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from advisor.errors import MeasurementError
from advisor.workload.checks import check_loss, check_model
from advisor.workload.devices import accelerators_mean_cpu
from advisor.workload.spec import Execution, Phase, Workload

OnPhase = Callable[[Phase, int], None]  # (phase that starts, number of the micro-batch)


class Scaler(Protocol):
    """What a step needs of `torch.amp.GradScaler`; the tracer has its own, which never looks at a value."""

    def scale(self, outputs: torch.Tensor) -> torch.Tensor: ...
    def step(self, optimizer: torch.optim.Optimizer) -> object: ...
    def update(self) -> None: ...


@dataclass(slots=True)
class Prepared:
    """A workload brought to life: everything `run_step` needs."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer | OptimizerInBackward
    batch: Any
    compute_loss: Callable[[Any, Any], torch.Tensor]
    execution: Execution
    device_type: str
    scaler: Scaler | None = None
    offload: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext


def prepare(workload: Workload, *, device: str = "cpu") -> Prepared:
    """Build model, optimizer and batch for real on `device`.

    Raises:
        MeasurementError: optimizer states are to stay on the host of an accelerator, which is predicted only.
    """
    execution = workload.execution
    if execution.offload_optimizer_states and torch.device(device).type != "cpu":
        raise MeasurementError(
            "offload_optimizer is predicted, not run: a step with optimizer states on the host needs an engine",
            hint="DeepSpeed's ZeRO-Offload or torchao's CPUOffloadOptimizer run it",
        )
    model = workload.build_model()
    check_model(model)
    model.train()
    model.to(device)
    if execution.memory_format == "channels_last":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batch = to_layout(move(workload.make_batch(execution.micro_batch_size), device), execution)
    if execution.compile:
        model.compile()
    device_type = torch.device(device).type
    return Prepared(
        model=model,
        optimizer=make_optimizer(workload, model),
        batch=batch,
        compute_loss=workload.compute_loss,
        execution=execution,
        device_type=device_type,
        scaler=torch.amp.GradScaler(device_type) if execution.grad_scaler else None,
        offload=_save_on_host if execution.offload_activations else contextlib.nullcontext,
    )


def make_optimizer(workload: Workload, model: torch.nn.Module) -> torch.optim.Optimizer | OptimizerInBackward:
    """The user's optimizer; with `optimizer_in_backward`, split into one per parameter that steps from a hook."""
    optimizer = workload.make_optimizer(model)
    return OptimizerInBackward(optimizer) if workload.execution.optimizer_in_backward else optimizer


def run_step(step: Prepared, *, on_phase: OnPhase = lambda phase, microbatch: None) -> torch.Tensor:
    """One optimizer step; returns the detached mean loss."""
    total: torch.Tensor | None = None
    for microbatch in range(step.execution.num_microbatches):
        total = run_microbatch(step, microbatch, total, on_phase=on_phase)
    run_update(step, on_phase=on_phase)
    assert total is not None
    return total


def run_microbatch(step: Prepared, microbatch: int, total: torch.Tensor | None, *, on_phase: OnPhase) -> torch.Tensor:
    """Forward and backward of one micro-batch; returns its detached share of the loss, added to `total`."""
    execution = step.execution
    with _tf32(execution):
        on_phase(Phase.FORWARD, microbatch)
        with _devices(step.model), _autocast(execution, step.device_type), step.offload():
            loss = step.compute_loss(step.model, step.batch)
            check_loss(loss, made_by=step.compute_loss)
            if execution.num_microbatches > 1:
                loss = loss / execution.num_microbatches
        total = loss.detach() if total is None else total + loss.detach()
        if step.scaler is not None:
            loss = step.scaler.scale(loss)
        on_phase(Phase.BACKWARD, microbatch)
        loss.backward()  # type: ignore[no-untyped-call]
    return total


def run_update(step: Prepared, *, on_phase: OnPhase) -> None:
    """What follows the last micro-batch: unscale, optimizer step, gradients freed."""
    with _tf32(step.execution):
        on_phase(Phase.OPTIMIZER, 0)
        if step.scaler is not None and isinstance(step.optimizer, torch.optim.Optimizer):
            step.scaler.step(step.optimizer)
            step.scaler.update()
        else:
            step.optimizer.step()
        on_phase(Phase.ZERO_GRAD, 0)
        step.optimizer.zero_grad(set_to_none=True)


def _devices(model: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
    """A trace runs code for a GPU on CPU tensors; a measurement runs it as it is."""
    fake = any(isinstance(parameter, FakeTensor) for parameter in model.parameters())
    return accelerators_mean_cpu() if fake else contextlib.nullcontext()


def move(batch: Any, device: str) -> Any:
    """The batch on `device`, whatever its nesting."""
    return pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), batch)


def to_layout(batch: Any, execution: Execution) -> Any:
    """Images in channels_last where the execution says so."""
    if execution.memory_format != "channels_last":
        return batch
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t, batch
    )


def _autocast(execution: Execution, device_type: str) -> contextlib.AbstractContextManager[Any]:
    if execution.autocast_dtype is None:
        return contextlib.nullcontext()
    return torch.autocast(device_type, dtype=getattr(torch, execution.autocast_dtype))


@contextlib.contextmanager
def _tf32(execution: Execution) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    if execution.allow_tf32:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        if execution.allow_tf32:
            torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def _save_on_host() -> Iterator[None]:
    """Saved activations wait in host memory; parameters stay where they are (torch's `save_on_cpu` copies them too)."""

    def pack(tensor: torch.Tensor) -> tuple[torch.device, torch.Tensor]:
        if isinstance(tensor, torch.nn.Parameter):
            return tensor.device, tensor
        return tensor.device, tensor.to("cpu", copy=True)

    def unpack(packed: tuple[torch.device, torch.Tensor]) -> torch.Tensor:
        device, tensor = packed
        return tensor.to(device, non_blocking=True)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


class OptimizerInBackward:
    """The user's optimizer split into one per parameter: each steps, and frees its gradient, once it is accumulated."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.param_groups = optimizer.param_groups
        self.defaults = optimizer.defaults
        self.whole = optimizer
        self._singles: list[torch.optim.Optimizer] = []
        make: Callable[..., torch.optim.Optimizer] = type(optimizer)
        for group in optimizer.param_groups:
            settings = {key: value for key, value in group.items() if key != "params"}
            for parameter in group["params"]:
                if parameter.requires_grad:
                    self._singles.append(make([{"params": [parameter], **settings}]))
                    parameter.register_post_accumulate_grad_hook(_stepper(self._singles[-1]))

    @property
    def state(self) -> dict[torch.Tensor, Any]:
        return {parameter: state for single in self._singles for parameter, state in single.state.items()}

    def step(self) -> None:
        """Every parameter has stepped during backward."""

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Every gradient was freed during backward."""


def _stepper(single: torch.optim.Optimizer) -> Callable[[torch.Tensor], None]:
    def hook(parameter: torch.Tensor) -> None:
        single.step()
        single.zero_grad(set_to_none=True)

    return hook
