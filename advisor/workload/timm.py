"""`timm:NAME`: an image model of timm, fed images of its default size and trained with cross-entropy."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from advisor.errors import WorkloadError
from advisor.workload.batches import make_tensor
from advisor.workload.expressions import namespace
from advisor.workload.losses import call_model
from advisor.workload.parts import Part, Source
from advisor.workload.spec import Guess
from advisor.workload.target import TensorForm, parse_tensor_form

if TYPE_CHECKING:
    import torch


def timm_source(name: str, *, inputs: Sequence[str] = ()) -> Source:
    """`inputs`: at most one short form, for another image size."""
    timm = _timm()
    if not timm.is_model(name.partition(".")[0]):
        close = difflib.get_close_matches(name, timm.list_models(), n=3)
        hint = f"did you mean {' or '.join(f'timm:{other}' for other in close)}?" if close else "timm.list_models()"
        raise WorkloadError(f"timm {timm.__version__} has no model {name!r}", hint=hint)
    config = timm.get_pretrained_cfg(name)
    if len(inputs) > 1:
        raise WorkloadError(f"timm:{name} takes one --input, the image", hint="as in --input f32:3x224x224")
    if inputs:
        image = parse_tensor_form(inputs[0], flag="--input")
    elif config is None or not config.input_size:
        raise WorkloadError(f"timm states no input size for {name}", hint="give one: --input f32:3xHxW")
    else:
        image = TensorForm(dtype="float32", shape=tuple(config.input_size))
    num_classes = 0 if config is None else config.num_classes
    label = TensorForm(dtype="int64", shape=(), low=0, high=num_classes) if num_classes else None
    text = f"{image}; target {label}" if label else str(image)
    why = f"timm's default_cfg of {name} says so"
    return Source(
        name=name,
        content=f"timm {timm.__version__} {name}".encode(),
        scope=namespace({"timm": timm}),
        model=Part(
            function=lambda: timm.create_model(name, pretrained=False),
            label=f"timm.create_model({name!r})",
        ),
        batch=Part(
            function=lambda size: (make_tensor(image, size), *([make_tensor(label, size)] if label else [])),
            label=text,
            guess=None if inputs else Guess(what="batch", chosen=text, why=why, flag="--input"),
        ),
        loss=Part(
            function=_cross_entropy,
            label="F.cross_entropy(out, target)",
            guess=Guess(what="loss", chosen="cross-entropy", why="it is a classifier", flag="--loss"),
        )
        if label
        else None,
    )


def _timm() -> Any:
    try:
        return importlib.import_module("timm")
    except ImportError as error:
        raise WorkloadError(f"timm can't be imported: {error}", hint="pip install timm") from None


def _cross_entropy(model: Any, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    import torch.nn.functional as F

    images, target = batch
    out = call_model(model, images)
    out = out[0] if isinstance(out, tuple) else out  # some return (logits, auxiliary or distilled logits)
    return F.cross_entropy(out, target)
