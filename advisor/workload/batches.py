"""The batch: from a flag, or filled where its sizes are certain; else an error with a template. No torch at import."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from advisor.errors import UsageError, WorkloadError
from advisor.workload.constructors import bare_signature, is_a
from advisor.workload.expressions import Expression, parse
from advisor.workload.parts import Builder, Part
from advisor.workload.spec import Guess
from advisor.workload.target import TargetSpec, TensorForm, is_tensor_form, parse_tensor_form

if TYPE_CHECKING:
    import torch

# Names public models give the longest sequence they take, in their configuration or on the module itself.
_LENGTH_NAMES = (
    "block_size",
    "max_seq_len",
    "max_seq_length",
    "n_positions",
    "n_ctx",
    "context_length",
    "sequence_len",
    "seq_len",
    "max_position_embeddings",
)
_CONFIG_NAMES = ("config", "cfg", "params", "args", "hparams")
_TARGET_NAMES = ("targets", "labels", "target_ids")
# Models state the longest context they accept, not what a step is trained at. Llama 3 pre-trains at up to 8,192 tokens
# and reaches 128 K in a short later stage (arXiv:2407.21783, section 3.4).
LONGEST_SEQUENCE = 8192


def make_tensor(form: TensorForm, batch_size: int) -> torch.Tensor:
    """Random values: uniform in the form's range; without one normal, or fair for bool."""
    import torch

    shape, dtype = (batch_size, *form.shape), getattr(torch, form.dtype)
    if form.dtype == "bool":
        return torch.randint(0, 2, shape).to(dtype)
    if form.low is None or form.high is None:
        return torch.randn(shape).to(dtype)
    if dtype.is_floating_point:
        return (torch.rand(shape) * (form.high - form.low) + form.low).to(dtype)
    return torch.randint(int(form.low), int(form.high), shape, dtype=dtype)


def given_inputs(spec: TargetSpec, scope: Mapping[str, Any], builder: Builder) -> Part | None:
    """What `--batch` or `--input` say is fed to the model; None where they say nothing."""
    if spec.batch is not None and spec.inputs:
        raise UsageError("--batch and --input both say what the batch is", hint="give one of them")
    if spec.batch is not None:
        expression = parse(spec.batch, flag="--batch", scope=scope)
        return Part(function=lambda size: _evaluate(expression, size, builder), label=spec.batch)
    if spec.inputs:
        forms = [parse_tensor_form(text, flag="--input") for text in spec.inputs]
        return Part(
            function=lambda size: tuple(make_tensor(form, size) for form in forms), label=", ".join(map(str, forms))
        )
    return None


def with_targets(inputs: Part, spec: TargetSpec, scope: Mapping[str, Any], builder: Builder) -> Part:
    """The batch as the pair (inputs, target) where `--target` was given."""
    if not spec.targets:
        return inputs
    makers = [_target_maker(text, scope, builder) for text in spec.targets]

    def make(size: int) -> tuple[Any, Any]:
        fed = inputs.function(size)
        targets = tuple(maker(size, fed) for maker in makers)
        return fed, targets[0] if len(targets) == 1 else targets

    label = f"{inputs.label}; target {', '.join(spec.targets)}"
    return Part(function=make, label=label, guess=inputs.guess, has_target=True)


def flattened(batch: tuple[Any, Any]) -> tuple[Any, ...]:
    """(inputs, target) as the one tuple that a hook or a training_step unpacks: `x, y = batch`."""
    fed, target = batch
    return (*(fed if isinstance(fed, tuple) else (fed,)), *(target if isinstance(target, tuple) else (target,)))


def _target_maker(text: str, scope: Mapping[str, Any], builder: Builder) -> Callable[[int, Any], Any]:
    if is_tensor_form(text):
        form = parse_tensor_form(text, flag="--target")
        return lambda size, fed: make_tensor(form, size)
    expression = parse(text, flag="--target", scope=scope)
    return lambda size, fed: _evaluate(expression, size, builder, batch=fed)


def _evaluate(expression: Expression, size: int, builder: Builder, **bound: object) -> Any:
    if "model" in expression.names:
        bound["model"] = builder.last()
    return expression(B=size, **bound)


def filled_tokens(model: torch.nn.Module) -> Part | None:
    """Token ids, where the model starts with an embedding and says how long a sequence it takes; else None."""
    import torch

    first = first_layer(model)
    length = sequence_length(model)
    if not isinstance(first, torch.nn.Embedding) or length is None:
        return None
    parameters = forward_parameters(model)
    target = next((p for p in parameters if p.name in _TARGET_NAMES), None)
    others = [p for p in parameters[1:] if p.default is p.empty and p is not target]
    if not parameters or others:
        return None
    size, why = length
    if first.num_embeddings == size and sum(isinstance(m, torch.nn.Embedding) for m in model.modules()) > 1:
        return None  # positions come first: which of the others is the vocabulary?
    form = TensorForm(dtype="int64", shape=(size,), low=0, high=first.num_embeddings)
    names = [parameters[0].name, *([target.name] if target else [])]
    positional = target is None or target is parameters[1]

    def make(batch_size: int) -> tuple[torch.Tensor, ...] | dict[str, torch.Tensor]:
        tensors = [make_tensor(form, batch_size) for _ in names]
        return tuple(tensors) if positional else dict(zip(names, tensors, strict=True))

    label = f"{', '.join(names)}: {form}"
    why = f"the first layer is {first}; {why}"
    return Part(function=make, label=label, guess=Guess(what="batch", chosen=label, why=why, flag="--batch"))


def sequence_length(holder: Any) -> tuple[int, str] | None:
    """Tokens per sequence, and why: what a model or its configuration states, at most `LONGEST_SEQUENCE`."""
    configs = [(name, getattr(holder, name, None)) for name in _CONFIG_NAMES]
    for prefix, config in [("", holder), *((f"{name}.", config) for name, config in configs if config is not None)]:
        for name in _LENGTH_NAMES:
            stated = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
            if isinstance(stated, int) and stated > 1:
                capped = f", cut to {LONGEST_SEQUENCE}" if stated > LONGEST_SEQUENCE else ""
                return min(stated, LONGEST_SEQUENCE), f"{prefix}{name} = {stated}{capped}"
    return None


def first_layer(model: torch.nn.Module) -> torch.nn.Module | None:
    """The first module, in order of definition, that holds parameters and no other module."""
    return next((module for module in model.modules() if module._parameters and not module._modules), None)


def forward_parameters(model: torch.nn.Module, method: str = "forward") -> list[inspect.Parameter]:
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    signature = inspect.signature(getattr(model, method))
    return [parameter for parameter in signature.parameters.values() if parameter.kind not in variadic]


def missing_batch(model: torch.nn.Module, spec: TargetSpec, *, flag: str = "") -> WorkloadError:
    """Nothing says what the model is fed: `flag`, or a template from its signature and its first layer."""
    import torch

    name = type(model).__name__
    if is_a(type(model), "LightningModule"):
        return WorkloadError(
            f"{name}.training_step needs a batch, and only you know its sizes",
            hint=spec.command("--batch '(torch.randn(B, ...), torch.randint(0, ..., (B,)))'"),
        )
    if type(model).forward is torch.nn.Module.forward:  # nn.Module's own, which only raises
        methods = [method for method in vars(type(model)) if "loss" in method] or ["METHOD"]
        call = f"--call 'model.{methods[0]}(*batch)'"
        return WorkloadError(f"{name} has no forward of its own", hint=spec.command("--input f32:SHAPE", call))
    parameters = forward_parameters(model)
    needed = [p for p in parameters if p.default is p.empty] or parameters[:1]
    message = f"nothing says what {name}.forward{bare_signature(model.forward)} is fed, and a size is never guessed"
    if flag:
        return WorkloadError(message, hint=spec.command(flag))
    forms = [_form_hint(first_layer(model)), *["f32:SHAPE"] * (len(needed) - 1)]
    return WorkloadError(
        message,
        hint=spec.command(*(f"--input '{form}'" for form in forms), *_loss_hint(model, spec))
        + "\nor write make_batch(batch_size) in the file; --batch takes any expression of B, the micro-batch size",
    )


def _form_hint(layer: torch.nn.Module | None) -> str:
    from torch import nn

    match layer:
        case nn.Embedding():
            return f"i64[0,{layer.num_embeddings}):LENGTH"
        case nn.Conv1d():
            return f"f32:{layer.in_channels}xLENGTH"
        case nn.Conv2d():
            return f"f32:{layer.in_channels}xHxW"
        case nn.Conv3d():
            return f"f32:{layer.in_channels}xDxHxW"
        case nn.Linear():
            return f"f32:{layer.in_features}"
        case nn.RNNBase():
            return f"f32:LENGTHx{layer.input_size}"
    return "f32:SHAPE"


def _loss_hint(model: torch.nn.Module, spec: TargetSpec) -> list[str]:
    """For a model that ends in a classifier: the loss and target that usually go with it."""
    from torch import nn

    if spec.loss is not None or spec.call is not None:
        return []
    last = [module for module in model.modules() if module._parameters]
    classes = last[-1].out_features if last and isinstance(last[-1], nn.Linear) else None
    return ["--target", f"'i64[0,{classes})'", "--loss ce"] if classes and classes > 1 else ["--target ... --loss ..."]
