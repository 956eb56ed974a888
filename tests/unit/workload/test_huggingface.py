"""A config.json: which class trains it, and what it is fed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from advisor.errors import WorkloadError
from advisor.workload.huggingface import read_config
from advisor.workload.parts import Source

pytest.importorskip("transformers")


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def read_fields(*inputs: str, **fields: Any) -> Source:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(fields))
        return read_config(path, inputs=inputs)

    return read_fields


BERT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 99}


def shapes(source: Source) -> dict[str, tuple[int, ...]]:
    assert source.batch is not None
    return {name: tuple(tensor.shape) for name, tensor in source.batch.function(2).items()}


def test_a_causal_model(read: Any) -> None:
    source = read(model_type="gpt2", architectures=["GPT2LMHeadModel"], n_positions=64, n_layer=1, n_embd=16, n_head=2)
    assert source.name == "GPT2LMHeadModel"
    assert source.model.guess is None
    assert shapes(source) == {"input_ids": (2, 64), "labels": (2, 64)}
    assert source.batch.guess.why == "n_positions = 64"
    assert source.batch.guess.flag == "--input"
    model = source.model.function()
    assert model.config.use_cache is False
    assert model(**source.batch.function(1)).loss.dim() == 0


def test_another_length(read: Any) -> None:
    source = read("i64[0,50):8", model_type="gpt2", architectures=["GPT2LMHeadModel"])
    assert shapes(source) == {"input_ids": (2, 8), "labels": (2, 8)}
    assert source.batch.guess is None


def test_a_configuration_older_than_model_types(read: Any) -> None:
    source = read(architectures=["BertForPreTraining"], max_position_embeddings=32, **BERT)
    assert shapes(source) == {"input_ids": (2, 32), "labels": (2, 32), "next_sentence_label": (2,)}


def test_a_class_without_a_loss_gives_way_to_the_head_that_trains(read: Any) -> None:
    source = read(model_type="bert", architectures=["BertModel"], **BERT)
    assert source.name == "BertForMaskedLM"
    assert source.model.guess.why.startswith("architectures names BertModel, which computes no loss")


def test_positions_after_the_padding_index(read: Any) -> None:
    source = read(
        model_type="roberta", architectures=["RobertaForMaskedLM"], max_position_embeddings=34, pad_token_id=1, **BERT
    )
    assert shapes(source)["input_ids"] == (2, 32)


def test_an_encoder_decoder(read: Any) -> None:
    source = read(model_type="t5", d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=99)
    assert source.name == "T5ForConditionalGeneration"
    assert shapes(source)["labels"] == (2, 512)
    assert source.model.function()(**{k: v[:, :4] for k, v in source.batch.function(1).items()}).loss.dim() == 0


@pytest.mark.parametrize(
    ("architecture", "labels"),
    [
        ("BertForSequenceClassification", {"labels": (2,)}),
        ("BertForTokenClassification", {"labels": (2, 512)}),
        ("BertForQuestionAnswering", {"start_positions": (2,), "end_positions": (2,)}),
    ],
)
def test_other_heads(read: Any, architecture: str, labels: dict[str, tuple[int, ...]]) -> None:
    source = read(model_type="bert", architectures=[architecture], **BERT)
    assert shapes(source) == {"input_ids": (2, 512), **labels}


def test_images(read: Any) -> None:
    source = read(model_type="vit", architectures=["ViTForImageClassification"], image_size=32)
    assert shapes(source) == {"pixel_values": (2, 3, 32, 32), "labels": (2,)}


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"model_type": "resnet", "architectures": ["ResNetForImageClassification"]}, "--input f32:3xHxW"),
        (
            {"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForCTC"]},
            "--batch 'dict(input_values=..., labels=...)'",
        ),
    ],
)
def test_a_batch_that_is_not_certain_is_asked_for(read: Any, fields: dict[str, Any], flag: str) -> None:
    source = read(**fields)
    assert source.batch is None
    assert source.batch_flag == flag


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "has no model_type and no architectures"),
        ({"model_type": "no-such-model"}, "knows no model type 'no-such-model'"),
        ({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, "states no sequence length"),
    ],
)
def test_configurations_that_say_too_little(read: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        read(**fields)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("model_type", "head", "flag"),
    [
        ("wav2vec2", "Wav2Vec2ForCTC", "--batch 'dict(input_values=..., labels=...)'"),
        ("whisper", "WhisperForConditionalGeneration", "--batch 'dict(input_features=..., labels=...)'"),
        ("llava", "LlavaForConditionalGeneration", "--batch 'dict(input_ids=..., labels=...)'"),
    ],
)
def test_speech_and_images_beside_text(read: Any, model_type: str, head: str, flag: str) -> None:
    source = read(model_type=model_type)
    assert source.name == head
    assert source.batch is None  # nothing states how long a recording is
    assert source.batch_flag == flag


def test_images_of_a_model_of_images_and_text(read: Any) -> None:
    source = read(model_type="clip", architectures=["CLIPForImageClassification"])
    assert shapes(source)["pixel_values"] == (2, 3, 224, 224)


def test_a_class_that_the_user_names(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(BERT))  # as before transformers 3: no model_type
    source = read_config(path, model="BertForMaskedLM")
    assert (source.name, source.model.guess) == ("BertForMaskedLM", None)
    with pytest.raises(WorkloadError, match=r"has no such model") as caught:
        read_config(path, model="BertForMaskedML")
    assert "BertForMaskedLM" in (caught.value.hint or "")


def test_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(WorkloadError, match=r"config.json is not JSON"):
        read_config(path)
    path.write_text("[]")
    with pytest.raises(WorkloadError, match="holds a list, not a configuration"):
        read_config(path)
