"""The loss: an expression, a named criterion, `training_step`, or what forward returns. No torch at import."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from advisor.errors import UsageError, WorkloadError
from advisor.workload.constructors import bare_signature
from advisor.workload.expressions import Expression, parse
from advisor.workload.parts import Part
from advisor.workload.spec import Guess
from advisor.workload.target import LOSSES, TargetSpec

if TYPE_CHECKING:
    import torch

CallModel = Callable[[Any, Any], Any]  # (model, what it is fed) -> what it returns

_CRITERIA = {
    "ce": "F.cross_entropy",
    "mse": "F.mse_loss",
    # With logits: its plain form refuses values outside [0, 1], and autocast refuses it on CUDA.
    "bce": "F.binary_cross_entropy_with_logits",
    "nll": "F.nll_loss",
    "l1": "F.l1_loss",
}


def given_loss(spec: TargetSpec, scope: Mapping[str, Any], *, has_target: bool) -> Part | None:
    """What `--loss` says, over `--call` or `model(*batch)`; None where it says nothing."""
    if spec.loss is None:
        return None
    call = model_call(spec, scope)
    if spec.loss in LOSSES:
        criterion = parse(f"{_CRITERIA[spec.loss]}(out, target)", flag="--loss", scope=scope)
        return Part(function=_named(spec.loss, criterion, call, has_target=has_target), label=criterion.text)
    expression = parse(spec.loss, flag="--loss", scope=scope)
    if expression.names <= {spec.loss} and spec.loss.isidentifier() and spec.loss not in {*scope, "out"}:
        raise UsageError(f"--loss {spec.loss}: no such loss", hint=f"known: {', '.join(LOSSES)}, or an expression")
    return Part(function=_expressed(expression, call, has_target=has_target), label=spec.loss)


def model_call(spec: TargetSpec, scope: Mapping[str, Any]) -> CallModel:
    if spec.call is None:
        return call_model
    expression = parse(spec.call, flag="--call", scope=scope)
    return lambda model, batch: expression(model=model, batch=batch)


def call_model(model: Any, batch: Any) -> Any:
    """A tuple is positional, a mapping keywords, anything else the one argument."""
    args, kwargs = _arguments(batch)
    _check_call(model, args, kwargs)
    return model(*args, **kwargs)


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(batch, tuple):
        return batch, {}
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (batch,), {}


def _check_call(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    # Found here, a call that can't work is an error in the batch; found inside torch it is a bare TypeError.
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        fed = [type(value).__name__ for value in args] + [f"{key}=" for key in kwargs]
        raise WorkloadError(
            f"{type(model).__name__}.forward{bare_signature(model.forward)} "
            f"can't take the batch ({', '.join(fed)}): {error}",
            hint="--batch: a tuple is positional, a dict keywords, a tensor one argument; "
            "--call 'model.method(*batch)' where forward is not the way in",
        ) from None


def _named(name: str, criterion: Expression, call: CallModel, *, has_target: bool) -> CallModel:
    def compute_loss(model: Any, batch: Any) -> Any:
        import torch

        fed, target = batch if has_target else _split(model, batch, name)
        if not isinstance(target, torch.Tensor):
            raise WorkloadError(f"--loss {name}: the target is a {type(target).__name__}, not a tensor")
        out = main_output(call(model, fed), name)
        if name in ("ce", "nll") and out.dim() == target.dim() + 1 > 2 and _classes_last(out, target):
            out, target = out.flatten(0, -2), target.flatten()
        elif name in ("mse", "l1", "bce") and out.shape != target.shape:
            # torch would broadcast with a warning, and the loss would mean something else.
            shapes = f"the output has shape {tuple(out.shape)}, the target {tuple(target.shape)}"
            raise WorkloadError(f"--loss {name}: {shapes}", hint=f"--loss '{_CRITERIA[name]}(out[...], target)'")
        return criterion(out=out, target=target, F=torch.nn.functional)

    return compute_loss


def _classes_last(out: torch.Tensor, target: torch.Tensor) -> bool:
    """(B, T, classes) against (B, T), where torch wants (B, classes, T)."""
    torch_fits = out.shape[0] == target.shape[0] and out.shape[2:] == target.shape[1:]
    return out.shape[:-1] == target.shape and not torch_fits


def _split(model: Any, batch: Any, name: str) -> tuple[Any, Any]:
    """(inputs, target) where forward takes exactly one argument fewer than the batch holds."""
    if isinstance(batch, tuple) and len(batch) > 1:
        signature = inspect.signature(model.forward)
        if not _binds(signature, batch) and _binds(signature, batch[:-1]):
            return batch[:-1], batch[-1]
    raise WorkloadError(
        f"--loss {name} compares the output with a target, and the batch holds none beyond what forward takes",
        hint="add --target, as in --target 'i64[0,1000)' for classes or --target f32:1 for numbers",
    )


def _binds(signature: inspect.Signature, args: tuple[Any, ...]) -> bool:
    try:
        signature.bind(*args)
    except TypeError:
        return False
    return True


def main_output(out: Any, name: str) -> torch.Tensor:
    """The one tensor a named loss can mean: the output, its `logits`, or its only float tensor with a gradient."""
    import torch

    if isinstance(out, torch.Tensor):
        return out
    logits = out.get("logits") if isinstance(out, Mapping) else getattr(out, "logits", None)
    if isinstance(logits, torch.Tensor):
        return logits
    tensors = _float_tensors(out)
    if len(tensors) != 1:
        raise WorkloadError(
            f"--loss {name}: the model returns {len(tensors)} float tensors in a {type(out).__name__}",
            hint=f"say which: --loss '{_CRITERIA[name]}(out[0], target)'",
        )
    return tensors[0]


def _expressed(expression: Expression, call: CallModel, *, has_target: bool) -> CallModel:
    runs_forward = "out" in expression.names or not _uses_model(expression.text)

    def compute_loss(model: Any, batch: Any) -> Any:
        bound: dict[str, Any] = {"model": model, "batch": batch}
        if has_target:
            bound["batch"], bound["target"] = batch
        elif "target" in expression.names:
            bound["batch"], bound["target"] = _split(model, batch, expression.text)
        if runs_forward:
            bound["out"] = call(model, bound["batch"])
        return expression(**bound)

    return compute_loss


def _uses_model(text: str) -> bool:
    """Whether an expression calls the model, or a function on it: `model(*batch)[1]`, `model.loss(x)`, `loss(model)`.

    One that only reads what forward left behind, as in `model.last_loss`, needs forward to run first.
    """
    tree = ast.parse(text.strip(), mode="eval")
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    read = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node not in called}
    return any(isinstance(node, ast.Name) and node.id == "model" and node not in read for node in ast.walk(tree))


def find_loss(out: Any) -> tuple[torch.Tensor, str, Guess | None]:
    """`.loss`, `["loss"]`, the only 0-d tensor with a gradient, else a proxy: the mean of the float outputs."""
    import torch

    if isinstance(loss := getattr(out, "loss", None), torch.Tensor):
        return loss, "out.loss", None
    if isinstance(out, Mapping) and isinstance(loss := out.get("loss"), torch.Tensor):
        return loss, 'out["loss"]', None
    tensors = _float_tensors(out)
    scalars = [tensor for tensor in tensors if tensor.dim() == 0]
    if len(scalars) == 1:
        why = "the only number with a gradient that forward returns"
        label = "out" if scalars[0] is out else "the scalar in what forward returns"
        return scalars[0], label, Guess(what="loss", chosen=label, why=why, flag="--loss")
    if not tensors:
        raise WorkloadError(
            f"forward returns a {type(out).__name__} without any float tensor that has a gradient: no loss in it",
            hint="give one: --loss 'EXPR' over model, batch and out, or --call where forward is not the way in",
        )
    label = "proxy: mean of the float outputs"
    why = "forward returns no loss, and none is given; the memory and time of the real criterion are missing"
    proxy = torch.stack([tensor.mean() for tensor in tensors]).mean() if len(tensors) > 1 else tensors[0].mean()
    return proxy, label, Guess(what="loss", chosen=label, why=why, flag="--loss")


def _float_tensors(out: Any) -> list[torch.Tensor]:
    import torch
    from torch.utils import _pytree as pytree

    leaves = pytree.tree_leaves(dict(out) if isinstance(out, Mapping) else out)
    return [t for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point() and t.requires_grad]
