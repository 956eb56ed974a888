"""The batch: given, filled where it is certain, or asked for with a template."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from advisor.errors import UsageError, WorkloadError
from advisor.workload.batches import (
    LONGEST_SEQUENCE,
    filled_tokens,
    flattened,
    given_inputs,
    make_tensor,
    missing_batch,
    sequence_length,
    with_targets,
)
from advisor.workload.expressions import namespace
from advisor.workload.parts import Builder, Part
from advisor.workload.target import TargetSpec, TensorForm, parse_tensor_form

SCOPE = namespace({})


def given(**flags: object) -> object:
    spec = TargetSpec(target="model.py", **flags)  # type: ignore[arg-type]
    builder = Builder(Part(function=lambda: nn.Linear(2, 3), label=""))
    model = builder()
    part = given_inputs(spec, SCOPE, builder)
    assert part is not None
    made = with_targets(part, spec, SCOPE, builder).function(4)
    del model
    return made


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("f32:3x8", (4, 3, 8), torch.float32),
        ("i32[2,5):6", (4, 6), torch.int32),
        ("bf16", (4,), torch.bfloat16),
        ("bool:2", (4, 2), torch.bool),
        ("f64[0,1):2", (4, 2), torch.float64),
    ],
)
def test_tensors_of_a_form(text: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = make_tensor(parse_tensor_form(text, flag="--input"), 4)
    assert (tuple(tensor.shape), tensor.dtype) == (shape, dtype)


def test_values_stay_in_range() -> None:
    tensor = make_tensor(TensorForm(dtype="int64", shape=(1000,), low=5, high=7), 2)
    assert set(tensor.unique().tolist()) == {5, 6}


def test_inputs_are_positional_and_a_target_is_apart() -> None:
    (x, y), target = given(inputs=("f32:2", "i64[0,9):3"), targets=("i64[0,10)",))
    assert (x.shape, y.shape, target.shape) == ((4, 2), (4, 3), (4,))


def test_two_targets_and_targets_as_expressions() -> None:
    x, (first, second) = given(batch="torch.ones(B, 2)", targets=("batch * 2", "f32:5"))
    assert torch.equal(first, 2 * x)
    assert second.shape == (4, 5)


def test_a_batch_may_name_the_model() -> None:
    assert given(batch="model.out_features * B") == 12


def test_a_batch_that_names_a_model_before_there_is_one() -> None:
    part = given_inputs(
        TargetSpec(target="model.py", batch="model"), SCOPE, Builder(Part(function=lambda: None, label=""))
    )
    assert part is not None
    with pytest.raises(WorkloadError, match="no model is built yet"):
        part.function(1)


def test_batch_and_input_contradict() -> None:
    with pytest.raises(UsageError, match="--batch and --input both say"):
        given(batch="B", inputs=("f32:2",))


def test_flattened() -> None:
    assert flattened(((1, 2), 3)) == (1, 2, 3)
    assert flattened((1, (2, 3))) == (1, 2, 3)


class Tokens(nn.Module):
    def __init__(self, embeddings: list[int], **config: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(**config)
        self.embeddings = nn.ModuleList(nn.Embedding(size, 4) for size in embeddings)

    def forward(self, idx: torch.Tensor, targets: torch.Tensor | None = None) -> None: ...


def test_tokens_are_filled_where_vocabulary_and_length_are_stated() -> None:
    part = filled_tokens(Tokens([100, 16], block_size=16))
    assert part is not None
    idx, targets = part.function(3)
    assert idx.shape == targets.shape == (3, 16)
    assert idx.max() < 100
    assert part.guess is not None
    assert part.guess.flag == "--batch"
    assert part.guess.why == "the first layer is Embedding(100, 4); config.block_size = 16"


def test_a_label_that_is_not_second_goes_by_keyword() -> None:
    class Labelled(Tokens):
        def forward(self, input_ids: torch.Tensor, mask: None = None, labels: None = None) -> None: ...

    part = filled_tokens(Labelled([100], max_seq_len=8))
    assert part is not None
    assert list(part.function(2)) == ["input_ids", "labels"]


@pytest.mark.parametrize(
    "model",
    [
        Tokens([100]),  # no length
        Tokens([16, 100], block_size=16),  # the first embedding may be that of positions
        nn.Sequential(nn.Linear(4, 4)),
    ],
)
def test_nothing_uncertain_is_filled(model: nn.Module) -> None:
    assert filled_tokens(model) is None


def test_another_required_argument_is_uncertain() -> None:
    class Two(Tokens):
        def forward(self, idx: torch.Tensor, hidden: torch.Tensor) -> None: ...

    assert filled_tokens(Two([100], block_size=16)) is None


def test_sequence_length_is_cut_and_says_so() -> None:
    assert sequence_length(SimpleNamespace(max_position_embeddings=131072)) == (
        LONGEST_SEQUENCE,
        "max_position_embeddings = 131072, cut to 8192",
    )
    assert sequence_length(SimpleNamespace(cfg={"n_ctx": 77})) == (77, "cfg.n_ctx = 77")
    assert sequence_length(SimpleNamespace()) is None


@pytest.mark.parametrize(
    ("first", "flag"),
    [
        (nn.Conv2d(3, 8, 3), "--input 'f32:3xHxW'"),
        (nn.Conv1d(2, 8, 3), "--input 'f32:2xLENGTH'"),
        (nn.Embedding(50, 8), "--input 'i64[0,50):LENGTH'"),
        (nn.LSTM(7, 8), "--input 'f32:LENGTHx7'"),
        (nn.Linear(8, 8), "--input 'f32:8'"),
    ],
)
def test_templates_come_from_the_first_layer(first: nn.Module, flag: str) -> None:
    model = nn.Sequential(first, nn.Linear(8, 10))
    error = missing_batch(model, TargetSpec(target="model.py", model="Net()"))
    assert "nothing says what Sequential.forward(input) is fed" in error.message
    line = f"advisor assess model.py --model 'Net()' {flag} --target 'i64[0,10)' --loss ce"
    assert (error.hint or "").splitlines()[0] == line


def test_a_model_without_forward_is_called_another_way() -> None:
    class Diffusion(nn.Linear):
        forward = nn.Module.forward

        def training_loss(self, x: torch.Tensor) -> torch.Tensor:
            return x

    error = missing_batch(Diffusion(2, 2), TargetSpec(target="model.py"))
    assert error.message == "Diffusion has no forward of its own"
    assert error.hint == "advisor assess model.py --input f32:SHAPE --call 'model.training_loss(*batch)'"
