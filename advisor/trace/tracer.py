"""Trace one training step of a model of any size, without the device it is for, into records.

The model is built for real without touching its pages, its tensors become fake CPU tensors, and the same steps that a
measurement takes run under a recorder while CPU kernels behave as the target's (`_semantics.py`). Blocks
that repeat are run a few times and written down for the rest (`_replay.py`).

Known limitations: a step whose operators depend on values (`.item()`, `nonzero`, boolean masks) can't be traced; the
error names the line.
"""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils import _pytree as pytree

from advisor.collector import collector_paused
from advisor.errors import AdvisorError, TraceError
from advisor.trace._again import Microbatch
from advisor.trace._recorder import Recorder
from advisor.trace._replay import BlockReplayer, ReplayInvalidError
from advisor.trace._semantics import target_semantics
from advisor.trace.records import (
    BlockChain,
    Category,
    ModuleRecord,
    OptimizerRecord,
    ParameterRecord,
    Phase,
    StepTrace,
    TraceTarget,
)
from advisor.workload import failures
from advisor.workload.blocks import repeated_blocks
from advisor.workload.build import build_batch, build_model, make_fake
from advisor.workload.spec import Execution, Workload
from advisor.workload.step import Prepared, make_optimizer, run_microbatch, run_update, to_layout

_PLAIN = (bool, int, float, str)


def trace_step(workload: Workload, target: TraceTarget, *, replay: bool = True) -> StepTrace:
    """Two optimizer steps of `workload` as if on `target`.

    Args:
        workload: options already applied; `workload.execution` says how a step runs.
        target: whose semantics to follow.
        replay: run each chain of repeated blocks a few times only and write the rest down from those. The records are
            the same; where they would not be (a block that leaves more than its output behind), all of them run.

    Raises:
        TraceError: the step depends on values, or an operator has no fake kernel; names the user's line.
        WorkloadError: the model, the loss or the optimizer is not usable.
    """
    if replay:
        with contextlib.suppress(ReplayInvalidError):
            return _trace(workload, target, replay=True)
    return _trace(workload, target, replay=False)


def _trace(workload: Workload, target: TraceTarget, *, replay: bool) -> StepTrace:
    execution = workload.execution
    if execution.num_microbatches > 2:  # the second stands for all the later ones
        workload = workload.with_execution(num_microbatches=2)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    mode.cache_enabled = False  # `Results` remembers, and keeps apart what an operator returns twice
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = build_model(workload)
        chains = repeated_blocks(model)
        make_fake(model, mode, channels_last=execution.memory_format == "channels_last")
        batch = to_layout(build_batch(workload, mode), execution)
        with target_semantics(target), _no_argument_checks(), _collected_between_phases(), mode:
            optimizer = make_optimizer(workload, model)
            recorder = Recorder(mode)
            session = _Run(recorder, model, optimizer, batch, workload, target)
            replayer = BlockReplayer(recorder, model, chains) if replay else None
            steady_start = session.run(replayer)
            return session.result(steady_start, execution, chains)


@contextlib.contextmanager
def _no_argument_checks() -> Iterator[None]:
    """`torch.distributions` validates arguments by looking at values."""
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)


@contextlib.contextmanager
def _collected_between_phases() -> Iterator[None]:
    """`_Run` calls the collector between phases: tensors in reference cycles die at the same place in every trace."""
    with collector_paused():
        gc.freeze()  # what is there already is not looked at
        try:
            yield
        finally:
            gc.unfreeze()


class _Scaler:
    """`GradScaler` that launches the same kernels and never looks at a value."""

    def __init__(self) -> None:
        self._scale = torch.full((1,), 65536.0)
        self._growth = torch.zeros(1, dtype=torch.int32)
        self._found: torch.Tensor | None = None

    def scale(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs * self._scale[0]

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        found, inverse = torch.zeros(1), self._scale.double().reciprocal().float()
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_dtype.setdefault(parameter.grad.dtype, []).append(parameter.grad)
        for grads in by_dtype.values():
            torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
        self._found = found
        optimizer.step()

    def update(self) -> None:
        assert self._found is not None
        torch._amp_update_scale_(self._scale, self._growth, self._found, 2.0, 0.5, 2000)


class _Run:
    """The two steps under the recorder."""

    def __init__(
        self,
        recorder: Recorder,
        model: torch.nn.Module,
        optimizer: Any,
        batch: Any,
        workload: Workload,
        target: TraceTarget,
    ) -> None:
        self.recorder, self.model, self.optimizer, self.batch = recorder, model, optimizer, batch
        self.workload, self.target = workload, target
        self.names: dict[torch.nn.Module, str] = {}
        for name, module in model.named_modules():
            self.names.setdefault(module, name)
        self.parameters: list[tuple[str, torch.nn.Parameter]] = list(model.named_parameters())
        self.parameter_index = {id(p): i for i, (_, p) in enumerate(self.parameters)}
        self.notes: list[str] = []
        self._register_persistent()
        self.prepared = Prepared(
            model=model,
            optimizer=optimizer,
            batch=batch,
            compute_loss=workload.compute_loss,
            execution=workload.execution,
            device_type="cpu",
            scaler=_Scaler() if workload.execution.grad_scaler else None,
            offload=self._offload if workload.execution.offload_activations else contextlib.nullcontext,
        )

    def _register_persistent(self) -> None:
        for index, (name, parameter) in enumerate(self.parameters):
            owner = name.rpartition(".")[0]
            self.recorder.parameter_modules[id(parameter)] = owner
            self._register(parameter, Category.PARAMETER, owner, index)
        for name, buffer in self.model.named_buffers():
            self._register(buffer, Category.BUFFER, name.rpartition(".")[0])
        for tensor in pytree.tree_leaves(self.batch):
            if isinstance(tensor, torch.Tensor):
                self._register(tensor, Category.INPUT, "")

    def _register(self, tensor: torch.Tensor, category: Category, module: str, parameter: int = -1) -> None:
        index = self.recorder.storage_of(tensor, category=category)
        storage = self.recorder.storages[index]
        if storage.category is category:
            storage.module = storage.module or module
            storage.parameter = parameter if storage.parameter < 0 else storage.parameter

    def run(self, replayer: BlockReplayer | None) -> int:
        """Both steps; returns the index of the steady step's first operator."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._module_hooks())
            if replayer is not None:
                stack.enter_context(replayer)
            stack.enter_context(self.recorder)
            try:
                first = self._first_step()
                self._mark_optimizer_state()
                steady_start = len(self.recorder.ops)
                self._steady_step(first)
            except (AdvisorError, ReplayInvalidError):
                raise
            except Exception as error:
                if replayer is not None and replayer.active:  # it may miss what a block that was not run leaves behind
                    raise ReplayInvalidError(str(error)) from error
                raise _explain(error) from error
            if replayer is not None:
                replayer.check()
        return steady_start

    def _first_step(self) -> Microbatch:
        """One micro-batch makes the optimizer state; accumulating there too would only take time."""
        microbatch = Microbatch(self.recorder, self.model)
        loss = run_microbatch(self.prepared, 0, None, on_phase=self._on_phase)
        gc.collect(1)
        microbatch.end(loss)
        run_update(self.prepared, on_phase=self._on_phase)
        return microbatch

    def _steady_step(self, first: Microbatch) -> None:
        repeats = first.repeats
        loss = first.repeat() if repeats else None
        for number in range(1 if repeats else 0, self.prepared.execution.num_microbatches):
            loss = run_microbatch(self.prepared, number, loss, on_phase=self._on_phase)
        run_update(self.prepared, on_phase=self._on_phase)

    def _on_phase(self, phase: Phase, microbatch: int) -> None:
        gc.collect(0 if phase is Phase.BACKWARD else 1)
        self.recorder.start_phase(phase, min(microbatch, 1))
        if phase is Phase.OPTIMIZER:
            self._mark_gradients()

    def _mark_gradients(self) -> None:
        for index, (name, parameter) in enumerate(self.parameters):
            if parameter.grad is not None:
                storage = self.recorder.storages[self.recorder.storage_of(parameter.grad)]
                storage.category, storage.parameter = Category.GRADIENT, index
                storage.module = name.rpartition(".")[0]

    def _mark_optimizer_state(self) -> None:
        fused = any(group.get("fused") or group.get("capturable") for group in self.optimizer.param_groups)
        for parameter, state in self.optimizer.state.items():
            index = self.parameter_index.get(id(parameter), -1)
            if not hasattr(state, "items"):
                continue
            for key, value in state.items():
                for tensor in pytree.tree_leaves(value):
                    if isinstance(tensor, torch.Tensor):
                        storage = self.recorder.storages[self.recorder.storage_of(tensor)]
                        if storage.category not in (Category.PARAMETER, Category.BUFFER):
                            storage.category, storage.parameter = Category.OPTIMIZER_STATE, index
                        # Adam's step count is a CPU scalar unless the optimizer is fused.
                        counter = key == "step" and tensor.dim() == 0 and not fused and self.target.device_type != "cpu"
                        storage.on_host |= counter or self.workload.execution.offload_optimizer_states

    @contextlib.contextmanager
    def _module_hooks(self) -> Iterator[None]:
        from torch.nn.modules import module as nn_module

        names, recorder = self.names, self.recorder

        def enter(module: torch.nn.Module, args: Any) -> None:
            if (name := names.get(module)) is not None:
                recorder.enter_module(name)

        def leave(module: torch.nn.Module, args: Any, output: Any) -> None:
            if module in names:
                recorder.leave_module()

        before = nn_module.register_module_forward_pre_hook(enter)
        after = nn_module.register_module_forward_hook(leave, always_call=True)  # recomputation stops by an exception
        try:
            yield
        finally:
            before.remove()
            after.remove()

    @contextlib.contextmanager
    def _offload(self) -> Iterator[None]:
        """Saved activations cross to the host and back; the copies on the host take no device memory."""
        recorder = self.recorder

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if isinstance(tensor, torch.nn.Parameter) or recorder.storages[recorder.storage_of(tensor)].category in (
                Category.PARAMETER,
                Category.BUFFER,
                Category.INPUT,
            ):
                return tensor
            recorder.host_allocations = True
            try:
                return tensor.clone()
            finally:
                recorder.host_allocations = False

        def unpack(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.clone() if recorder.storages[recorder.storage_of(tensor)].on_host else tensor

        recorder.offloading = True
        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                yield
        finally:
            recorder.offloading = False

    def result(self, steady_start: int, execution: Execution, chains: list[list[str]]) -> StepTrace:
        recorder = self.recorder
        modules = dict(self.model.named_modules())
        return StepTrace(
            ops=tuple(recorder.ops),
            steady_start=steady_start,
            storages=recorder.finish_storages(),
            events=recorder.finish_events(),
            parameters=tuple(
                ParameterRecord(
                    name=name,
                    shape=tuple(p.shape),
                    dtype=str(p.dtype).removeprefix("torch."),
                    requires_grad=p.requires_grad,
                    storage=recorder.storage_of(p),
                )
                for name, p in self.parameters
            ),
            modules=tuple(_module_record(name, module) for name, module in modules.items()),
            block_chains=tuple(BlockChain(tuple(chain), type(modules[chain[0]]).__name__) for chain in chains),
            optimizer=_optimizer_record(self.optimizer, self.target),
            device_type=self.target.device_type,
            autocast_dtype=execution.autocast_dtype,
            micro_batch_size=execution.micro_batch_size,
            num_microbatches=execution.num_microbatches,
            tokens_per_sample=_tokens_per_sample(self.batch, execution.micro_batch_size),
            cudnn_benchmark=torch.backends.cudnn.benchmark,
            notes=tuple(self.notes),
        )


def _module_record(name: str, module: torch.nn.Module) -> ModuleRecord:
    attributes = []
    for key, value in module.__dict__.items():
        if key.startswith("_") or key == "training":
            continue
        if type(value) in _PLAIN:  # not a subclass, an enumeration say: the parent process can't import the user's
            attributes.append((key, value))
        elif isinstance(value, tuple) and all(isinstance(item, int) for item in value):
            attributes.append((key, "x".join(map(str, value))))
    implementation = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if type(implementation) is str:  # Hugging Face: the switch that the option `attention` sets
        attributes.append(("attn_implementation", implementation))
    return ModuleRecord(
        name=name,
        type_name=type(module).__name__,
        num_parameters=sum(p.numel() for p in module.parameters()),
        attributes=tuple(attributes),
    )


def _optimizer_record(optimizer: Any, target: TraceTarget) -> OptimizerRecord:
    whole = getattr(optimizer, "whole", optimizer)
    group = whole.param_groups[0]
    if group.get("fused"):
        implementation = "fused"
    elif type(whole).__module__.startswith("torch.optim") and "foreach" in group:
        default = target.device_type == "cuda"
        implementation = "foreach" if (group["foreach"] if group["foreach"] is not None else default) else "for-loop"
    else:
        implementation = "custom"
    rate = group.get("lr")
    return OptimizerRecord(
        type_name=type(whole).__name__,
        implementation=implementation,
        learning_rate=float(rate) if isinstance(rate, (int, float)) else None,
        betas=tuple(float(beta) for beta in group.get("betas", ())),
        weight_decay=float(group["weight_decay"]) if isinstance(group.get("weight_decay"), (int, float)) else None,
    )


def _tokens_per_sample(batch: Any, micro_batch_size: int) -> int | None:
    """Length of the first integer tensor (batch, length): tokens, where the model reads tokens."""
    for tensor in pytree.tree_leaves(batch):
        if not isinstance(tensor, torch.Tensor) or tensor.is_floating_point() or tensor.dim() != 2:
            continue
        if tensor.shape[0] == micro_batch_size and tensor.shape[1] > 1:
            return int(tensor.shape[1])
    return None


def _explain(error: Exception) -> TraceError:
    """The user's line, not ours, for a step that can't be traced."""
    where = failures.where(error) or "inside torch"
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        return TraceError(
            f"{where}\nthe step depends on a value that only a real run knows ({error.func}).",
            hint="replace the value by a shape or a constant, or give a --loss that avoids this line.",
        )
    return TraceError(
        f"{where}\n{type(error).__name__}: {error}",
        hint="only shapes and dtypes count here: does --batch give what forward takes?",
    )
