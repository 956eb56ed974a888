"""A Hugging Face `config.json` as a workload: the class that trains, token or image batches of its own sizes."""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from advisor.errors import WorkloadError
from advisor.workload.batches import make_tensor, sequence_length
from advisor.workload.expressions import namespace
from advisor.workload.failures import shown, user_code
from advisor.workload.generate_variants import config_variants
from advisor.workload.parts import Part, Source
from advisor.workload.spec import Guess
from advisor.workload.target import TensorForm, parse_tensor_form

_LANGUAGE_MODEL = re.compile(r"For(CausalLM|MaskedLM|PreTraining|ConditionalGeneration)$|LMHeadModel$")
# T5 trained on sequences of 512 tokens (arXiv:1910.10683, section 3.1.2); its positions are relative, so newer
# configurations state no length.
_T5_LENGTH = 512


def read_config(path: Path, *, inputs: Sequence[str] = (), model: str | None = None) -> Source:
    """The class that trains, of the sizes the configuration states.

    Args:
        path: the `config.json`.
        inputs: at most one short form that stands for the token ids (a length, a vocabulary) or the image.
        model: a class of transformers instead of the one that `architectures` names.
    """
    if not path.is_file():
        raise WorkloadError(f"no such file: {path}")
    transformers = _transformers(path)
    content = path.read_bytes()
    named = _named_class(transformers, model) if model is not None else None
    config = _config(transformers, _fields(path, content), path, named)
    kind, why = (named, None) if named is not None else _model_class(transformers, config, path)
    label = f"{kind.__name__}({type(config).__name__}) of {shown(path)}"
    guess = Guess(what="model", chosen=kind.__name__, why=why, flag="--model") if why else None
    forms, batch_why = _forms(kind, config, inputs, path)
    text = ", ".join(f"{name}: {form}" for name, form in forms.items())
    return Source(
        name=kind.__name__,
        content=content,
        scope=namespace({"transformers": transformers, "config": config, kind.__name__: kind}),
        model=Part(function=lambda: kind(config), label=label, guess=guess),
        variants=config_variants(config, kind),
        batch=Part(
            function=lambda size: {name: make_tensor(form, size) for name, form in forms.items()},
            label=text,
            guess=Guess(what="batch", chosen=text, why=batch_why, flag="--input") if batch_why else None,
        )
        if forms
        else None,
        batch_flag="" if forms else _batch_flag(kind, config),
    )


def _batch_flag(kind: Any, config: Any) -> str:
    """What to ask for where the configuration does not give all sizes."""
    if kind.main_input_name == "pixel_values" and kind.__name__.endswith("ForImageClassification"):
        return f"--input f32:{_vision(config).num_channels}xHxW"
    return f"--batch 'dict({kind.main_input_name}=..., labels=...)'"


def _transformers(path: Path) -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise WorkloadError(
            f"{shown(path)} is a Hugging Face configuration, and transformers can't be imported: {error}",
            hint="pip install transformers",
        ) from None


def _named_class(transformers: Any, name: str) -> Any:
    kind = getattr(transformers, name, None) if name.isidentifier() else None
    if getattr(kind, "config_class", None) is not None:
        return kind
    close = difflib.get_close_matches(name, dir(transformers), n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else "a class, as in --model BertForMaskedLM"
    raise WorkloadError(f"--model {name}: transformers {transformers.__version__} has no such model", hint=hint)


def _fields(path: Path, content: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(content)
    except ValueError as error:
        raise WorkloadError(f"{shown(path)} is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise WorkloadError(f"{shown(path)} holds a {type(fields).__name__}, not a configuration")
    return fields


def _config(transformers: Any, fields: dict[str, Any], path: Path, named: Any) -> Any:
    known = transformers.CONFIG_MAPPING
    model_type = fields.get("model_type")
    if model_type is None:  # configurations older than transformers 3 name the class at most
        kinds = [named, *(getattr(transformers, name, None) for name in fields.get("architectures") or ())]
        config_class = next((kind.config_class for kind in kinds if kind is not None), None)
        if config_class is None:
            raise WorkloadError(
                f"{shown(path)} has no model_type and no architectures: nothing says which model it is of",
                hint='add the field, as in "model_type": "bert"; or name the class, as in --model BertForMaskedLM',
            )
    elif model_type in known:
        config_class = known[model_type]
    else:
        raise WorkloadError(
            f"{shown(path)}: transformers {transformers.__version__} knows no model type {model_type!r}",
            hint="a newer transformers may; a model with code of its own is given as model.py with --model",
        )
    with user_code(f"reading {shown(path)}", all_theirs=True):
        config = config_class.from_dict(fields)
    config.use_cache = False  # keys and values are kept for generation, not for training
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        # Labels are shifted right behind it; files often leave it out. T5 starts with its padding token.
        config.decoder_start_token_id = config.pad_token_id or 0
    return config


def _model_class(transformers: Any, config: Any, path: Path) -> tuple[Any, str | None]:
    """The class `architectures` names if it computes a loss, else the task head that trains such a model, and why."""
    named = next(iter(config.architectures or ()), None)
    kind = getattr(transformers, named, None) if named else None
    if kind is not None and _computes_loss(kind):
        return kind, None
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    tasks = ["CAUSAL_LM", "IMAGE_CLASSIFICATION", "CTC", "AUDIO_CLASSIFICATION"]
    if not getattr(config, "is_decoder", False):
        tasks.insert(0, "MASKED_LM")
    if getattr(config, "is_encoder_decoder", False):  # first: some have a head for their decoder alone, too
        tasks = ["SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", *tasks]
    if hasattr(config, "vision_config"):
        tasks.insert(0, "IMAGE_TEXT_TO_TEXT")
    for task in tasks:
        name = getattr(auto, f"MODEL_FOR_{task}_MAPPING_NAMES").get(config.model_type)
        kind = getattr(transformers, name, None) if isinstance(name, str) else None
        if kind is not None:
            stated = f"architectures names {named}, which computes no loss" if named else "it names no architecture"
            return kind, f"{stated}; {name} is the {task.lower().replace('_', ' ')} head of {config.model_type}"
    raise WorkloadError(
        f"{shown(path)}: no head of model type {config.model_type!r} that advisor knows how to train",
        hint="write a model.py with build_model() and make_batch(batch_size)",
    )


def _computes_loss(kind: Any) -> bool:
    return bool({"labels", "start_positions"} & set(inspect.signature(kind.forward).parameters))


def _forms(kind: Any, config: Any, inputs: Sequence[str], path: Path) -> tuple[Mapping[str, TensorForm], str | None]:
    """Name of each forward argument and its tensor; empty where its sizes are not certain. And why, where guessed."""
    given = parse_tensor_form(inputs[0], flag="--input") if inputs else None
    if len(inputs) > 1:
        what = f"{shown(path)} takes one --input, for its token ids or its image"
        raise WorkloadError(what, hint="for more, --batch 'dict(...)'")
    name = kind.__name__
    if kind.main_input_name == "pixel_values" and name.endswith("ForImageClassification"):
        return _image_forms(config, given)
    parts = ("vision_config", "audio_config")
    if kind.main_input_name != "input_ids" or any(hasattr(config, part) for part in parts):
        return {}, None
    tokens, why = (given, None) if given else _token_form(kind, config, path)
    labels = _label_forms(name, config, tokens)
    if "next_sentence_label" in inspect.signature(kind.forward).parameters and labels:
        labels["next_sentence_label"] = TensorForm(dtype="int64", shape=(), low=0, high=2)
    return ({"input_ids": tokens, **labels}, why) if labels else ({}, None)


def _token_form(kind: Any, config: Any, path: Path) -> tuple[TensorForm, str]:
    text_config = config.get_text_config()
    found = sequence_length(text_config)
    if found is None and config.model_type in ("t5", "mt5", "longt5", "umt5"):
        found = _T5_LENGTH, "T5 was trained at 512 tokens"
    if found is None:
        raise WorkloadError(
            f"{shown(path)} states no sequence length",
            hint=f"give one: --input 'i64[0,{text_config.vocab_size}):LENGTH'",
        )
    length, why = found
    if "position_ids_from_input_ids" in inspect.getsource(sys.modules[kind.__module__]):
        # RoBERTa and its kin start counting positions after the padding index.
        length -= config.pad_token_id + 1
        why += f", less {config.pad_token_id + 1} that its padding index takes"
    return TensorForm(dtype="int64", shape=(length,), low=0, high=text_config.vocab_size), why


def _label_forms(name: str, config: Any, tokens: TensorForm) -> dict[str, TensorForm]:
    if _LANGUAGE_MODEL.search(name):
        return {"labels": tokens}
    classes = TensorForm(dtype="int64", shape=(), low=0, high=config.num_labels)
    if name.endswith("ForSequenceClassification"):
        return {"labels": classes if config.num_labels > 1 else TensorForm(dtype="float32", shape=())}
    if name.endswith("ForTokenClassification"):
        return {"labels": TensorForm(dtype="int64", shape=tokens.shape, low=0, high=config.num_labels)}
    if name.endswith("ForQuestionAnswering"):
        position = TensorForm(dtype="int64", shape=(), low=0, high=tokens.shape[0])
        return {"start_positions": position, "end_positions": position}
    return {}


def _vision(config: Any) -> Any:
    """The part of a configuration that describes the image: itself, or what CLIP and its kin hold it in."""
    return getattr(config, "vision_config", config)


def _image_forms(config: Any, given: TensorForm | None) -> tuple[Mapping[str, TensorForm], str | None]:
    vision = _vision(config)
    size = getattr(vision, "image_size", None)
    if given is None and size is None:
        return {}, None  # a convolutional network takes any size
    sides = tuple(size) if isinstance(size, list | tuple) else (size, size)
    image = given or TensorForm(dtype="float32", shape=(vision.num_channels, *sides))
    labels = TensorForm(dtype="int64", shape=(), low=0, high=config.num_labels)
    return {"pixel_values": image, "labels": labels}, None
