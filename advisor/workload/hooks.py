"""The names a user's file may define for advisor, checked. A function that needs other arguments is not a hook."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from advisor.errors import WorkloadError
from advisor.workload.candidates import UserFile
from advisor.workload.constructors import signature
from advisor.workload.failures import shown, user_code

# Hook -> (what advisor passes, the flag that says the same)
_STEP_HOOKS = {
    "build_model": ("", "--model"),
    "make_batch": ("batch_size", "--batch"),
    "compute_loss": ("model, batch", "--loss"),
    "make_optimizer": ("model", "--optimizer"),
}


def step_hook(file: UserFile, name: str) -> Callable[..., Any] | None:
    """One of the four functions of a step; an error where the file uses the name for something else."""
    hook = file.names.get(name)
    if hook is None:
        return None
    passed, flag = _STEP_HOOKS[name]
    if not callable(hook):
        raise WorkloadError(f"{name} in {shown(file.path)} is a {type(hook).__name__}, not a function")
    if not _takes(hook, passed):
        if name == "build_model":  # many files have one for a configuration of their own; found_model knows what to say
            return None
        raise WorkloadError(
            f"{signature(hook)} in {shown(file.path)}: advisor calls {name}({passed})",
            hint=f"use another name, or give {flag}",
        )
    return hook  # type: ignore[no-any-return]


def other_hook(file: UserFile, name: str, passed: str) -> Callable[..., Any] | None:
    """`batches` or `evaluate`; training scripts use both names for functions of their own, which are left alone."""
    hook = file.names.get(name)
    return hook if callable(hook) and _takes(hook, passed) else None


def variants(file: UserFile) -> Mapping[str, Callable[[], Any]]:
    """What `variants()` returns: name -> function building a smaller model."""
    hook = other_hook(file, "variants", "")
    if hook is None:
        return {}
    with user_code(f"variants() in {shown(file.path)}"):
        made = hook()
    if not isinstance(made, Mapping) or not all(isinstance(n, str) and callable(make) for n, make in made.items()):
        raise WorkloadError(
            f"variants() in {shown(file.path)} returns no dict of functions",
            hint='as in return {"half width": lambda: Net(width=256)}',
        )
    return dict(made)


def settings(file: UserFile) -> Mapping[str, str]:
    """The file's own `ADVISOR`, its values as a flag would write them."""
    given = file.names.get("ADVISOR", {})
    if not isinstance(given, Mapping):
        raise WorkloadError(
            f"ADVISOR in {shown(file.path)} is a {type(given).__name__}, not a dict",
            hint='as in ADVISOR = {"global_batch": 512, "samples": "40M", "deadline": "5d"}',
        )
    return {str(name): str(value) for name, value in given.items()}


def _takes(hook: Callable[..., Any], passed: str) -> bool:
    try:
        inspect.signature(hook).bind(*passed.split(", ") if passed else ())
    except (TypeError, ValueError):
        return False
    return True
