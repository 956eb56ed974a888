"""TARGET and its flags, turned into a `Workload` and the description of what was found. Runs in the child process.

A flag wins over a hook of the file, a hook over what the file shows; every guess says which flag overrides it.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from advisor.errors import UsageError, WorkloadError
from advisor.workload import hooks
from advisor.workload.batches import filled_tokens, flattened, given_inputs, missing_batch, with_targets
from advisor.workload.build import build_model
from advisor.workload.candidates import UserFile, found_model, named_model, open_file
from advisor.workload.devices import accelerators_mean_cpu
from advisor.workload.expressions import namespace
from advisor.workload.failures import user_code
from advisor.workload.found import FoundLoss, FoundOptimizer
from advisor.workload.huggingface import read_config
from advisor.workload.importing import import_module
from advisor.workload.losses import given_loss, model_call
from advisor.workload.optimizers import checked, given_optimizer
from advisor.workload.parts import Builder, Part, Source
from advisor.workload.spec import Guess, Workload, WorkloadDescription
from advisor.workload.target import Target, TargetKind, TargetSpec, parse_target
from advisor.workload.timm import timm_source

_VERSIONED = ("torch", "transformers", "timm", "lightning", "pytorch_lightning", "torchvision", "numpy")


def load(spec: TargetSpec) -> tuple[Workload, WorkloadDescription]:
    """Import, find and check; the model itself is built only where the batch can't be known without it."""
    with _devices(), user_code(f"loading {spec.target}"):
        source = _source(spec, parse_target(spec.target))
        builder = Builder(source.model, skipped=source.skipped)
        batch = _batch(spec, source, builder)
        has_target = batch is not None and batch.has_target
        loss, optimizer = _loss(spec, source, has_target=has_target), _optimizer(spec, source)
        workload = Workload(
            build_model=builder,
            make_batch=batch.function if batch else lambda size: None,
            compute_loss=loss.function,
            make_optimizer=optimizer.function,
            variants=source.variants,
            batches=source.batches,
            evaluate=source.evaluate,
            name=source.name,
        )
        if batch is None:
            batch = _filled_batch(build_model(workload), source, spec)
            workload = replace(workload, make_batch=batch.function)
    return workload, _describe(spec, source, batch, loss, optimizer)


def _devices() -> AbstractContextManager[None]:
    """Files that move things to a GPU while they are imported; where there is one, they may."""
    return nullcontext() if torch.accelerator.is_available() else accelerators_mean_cpu()


def refined(description: WorkloadDescription, workload: Workload) -> WorkloadDescription:
    """The description after a step has run: the model's size, the loss's and the optimizer's origin show only then."""
    if isinstance(workload.build_model, Builder) and (guess := workload.build_model.guess):
        guesses = tuple(guess if other.what == "model" else other for other in description.guesses)
        description = replace(description, guesses=guesses)
    for what, function in (("loss", workload.compute_loss), ("optimizer", workload.make_optimizer)):
        if isinstance(function, FoundLoss | FoundOptimizer):
            guesses = tuple(guess for guess in description.guesses if guess.what != what)
            guesses += (function.guess,) if function.guess else ()
            changed: dict[str, Any] = {what: function.label}
            description = replace(description, guesses=guesses, **changed)
    return description


def _source(spec: TargetSpec, target: Target) -> Source:
    if target.kind in (TargetKind.CONFIG, TargetKind.TIMM):
        if spec.targets or (spec.model is not None and target.kind is TargetKind.TIMM):
            flag = "--target" if spec.targets else "--model"
            raise UsageError(f"{flag} has no meaning beside {spec.target}", hint="--batch says what the model is fed")
        if spec.batch is not None and spec.inputs:
            raise UsageError("--batch and --input both say what the batch is", hint="give one of them")
        if target.kind is TargetKind.CONFIG:
            return read_config(target.path, inputs=spec.inputs, model=spec.model)
        return timm_source(target.location, inputs=spec.inputs)
    if target.name and spec.model is not None:
        raise UsageError(f"{spec.target} and --model {spec.model} both name the model", hint="give one of them")
    return _file_source(spec, _opened(spec, target), target.name or spec.model)


def _opened(spec: TargetSpec, target: Target) -> UserFile:
    if target.kind is TargetKind.FILE:
        return open_file(target.path, target=target.location, skip_failing=spec.skip_failing_statements)
    if spec.skip_failing_statements:
        raise UsageError("--skip-failing-statements needs a file", hint="TARGET as FOLDER/model.py")
    module = import_module(target.location)
    if module.__file__ is None:
        raise WorkloadError(f"{target.location} is a folder of modules, not a module")
    return UserFile(target=target.location, path=Path(module.__file__), module_name=module.__name__, names=vars(module))


def _file_source(spec: TargetSpec, file: UserFile, named: str | None) -> Source:
    if named is not None:
        model = named_model(named, file)
    elif hook := hooks.step_hook(file, "build_model"):
        model = Part(function=hook, label="build_model()")
    else:
        model = found_model(file)
    make_batch = None if spec.batch or spec.inputs else hooks.step_hook(file, "make_batch")
    compute_loss = None if spec.loss else hooks.step_hook(file, "compute_loss")
    make_optimizer = None if spec.optimizer else hooks.step_hook(file, "make_optimizer")
    name = model.label.partition("(")[0]
    return Source(
        name=name if name.isidentifier() and name != "build_model" else file.path.stem,
        content=file.path.read_bytes(),
        scope=namespace(file.names),
        model=model,
        batch=Part(function=make_batch, label="make_batch(batch_size)") if make_batch else None,
        loss=Part(function=compute_loss, label="compute_loss(model, batch)") if compute_loss else None,
        optimizer=_hooked_optimizer(make_optimizer) if make_optimizer else None,
        variants=hooks.variants(file) or model.variants,
        batches=hooks.other_hook(file, "batches", "batch_size"),
        evaluate=hooks.other_hook(file, "evaluate", "model"),
        settings=hooks.settings(file),
        skipped=file.skipped,
    )


def _hooked_optimizer(hook: Any) -> Part:
    return Part(function=lambda model: checked(hook(model), "make_optimizer(model)"), label="make_optimizer(model)")


def _batch(spec: TargetSpec, source: Source, builder: Builder) -> Part | None:
    given = given_inputs(spec, source.scope, builder) if source.batch is None or spec.batch else None
    inputs = given or source.batch
    return with_targets(inputs, spec, source.scope, builder) if inputs else None


def _filled_batch(model: torch.nn.Module, source: Source, spec: TargetSpec) -> Part:
    batch = None if source.batch_flag else filled_tokens(model)
    if batch is None:
        raise missing_batch(model, spec, flag=source.batch_flag)
    return batch


def _loss(spec: TargetSpec, source: Source, *, has_target: bool) -> Part:
    given = given_loss(spec, source.scope, has_target=has_target)
    if given is not None:
        return given
    if source.loss is None or spec.call is not None:
        found = FoundLoss(model_call(spec, source.scope), has_target=has_target)
        return Part(function=found, label=found.label)
    if not has_target:
        return source.loss
    hook = source.loss.function
    return replace(source.loss, function=lambda model, batch: hook(model, flattened(batch)))


def _optimizer(spec: TargetSpec, source: Source) -> Part:
    if spec.optimizer is not None:
        return given_optimizer(spec.optimizer, source.scope)
    if source.optimizer is not None:
        return source.optimizer
    found = FoundOptimizer()
    return Part(function=found, label=found.label)


def _describe(spec: TargetSpec, source: Source, batch: Part, loss: Part, optimizer: Part) -> WorkloadDescription:
    parts = {"model": source.model, "batch": batch, "loss": loss, "optimizer": optimizer}
    digest = hashlib.sha256(source.content)
    for expression in spec.expressions():
        digest.update(b"\0" + expression.encode())
    versions = {"python": platform.python_version()}
    versions |= {name: str(sys.modules[name].__version__) for name in _VERSIONED if name in sys.modules}
    guesses = [part.guess for part in parts.values() if part.guess]
    if source.skipped:
        lines = f"lines {'; '.join(source.skipped)} left out"
        guesses.append(
            Guess(what="import", chosen=lines, why="they fail or may train", flag="--skip-failing-statements")
        )
    return WorkloadDescription(
        target=spec.target,
        **{name: part.label for name, part in parts.items()},
        guesses=tuple(guesses),
        settings=source.settings,
        variants=tuple(source.variants),
        has_batches=source.batches is not None,
        has_evaluate=source.evaluate is not None,
        source_hash=digest.hexdigest(),
        versions=versions,
    )
