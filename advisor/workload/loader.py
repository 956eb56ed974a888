"""TARGET and its flags, turned into a `Workload` and the description of what was found. Runs in the child process.

A flag wins over a hook of the file, a hook over what the file shows; every guess says which flag overrides it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from advisor.errors import UsageError, WorkloadError
from advisor.workload.batches import filled_tokens, given_inputs, missing_batch, with_targets
from advisor.workload.build import build_model
from advisor.workload.candidates import UserFile, found_model, is_a, named_model
from advisor.workload.constructors import required_parameters, signature
from advisor.workload.expressions import namespace
from advisor.workload.failures import shown, user_code
from advisor.workload.huggingface import read_config
from advisor.workload.importing import import_file, import_module
from advisor.workload.lightning import ConfiguredOptimizer, training_step
from advisor.workload.losses import OutputLoss, given_loss, model_call
from advisor.workload.optimizers import assumed_optimizer, checked, given_optimizer
from advisor.workload.parts import Builder, Part, Source
from advisor.workload.spec import Guess, Workload, WorkloadDescription
from advisor.workload.target import Target, TargetKind, TargetSpec, parse_target
from advisor.workload.timm import timm_source

_HOOKS = {"build_model": (), "make_batch": ("batch_size",), "compute_loss": ("model", "batch")}
_HOOKS |= {"make_optimizer": ("model",), "variants": (), "batches": ("batch_size",), "evaluate": ("model",)}
_VERSIONED = ("torch", "transformers", "timm", "lightning", "pytorch_lightning", "torchvision", "numpy")


def load(spec: TargetSpec) -> tuple[Workload, WorkloadDescription]:
    """Import, find and check; the model itself is built only where the batch can't be known without it."""
    with user_code(f"loading {spec.target}"):
        source = _source(spec, parse_target(spec.target))
        builder = Builder()
        build = builder.remembering(source.model.function)
        kind = _LazyKind(build)
        batch = _batch(spec, source, builder, kind)
        loss = _loss(spec, source, batch, kind)
        optimizer = _optimizer(spec, source, kind)
    workload = Workload(
        build_model=build,
        make_batch=batch.function,
        compute_loss=loss.function,
        make_optimizer=optimizer.function,
        variants={name: builder.remembering(make) for name, make in source.variants.items()},
        batches=source.batches,
        evaluate=source.evaluate,
        name=source.name,
    )
    return workload, _describe(spec, source, batch, loss, optimizer)
