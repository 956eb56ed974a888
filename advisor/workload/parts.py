"""The four parts of a workload while they are being found: each a function, its label and whether it was guessed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from advisor.errors import WorkloadError
from advisor.workload.guard import guarded
from advisor.workload.spec import Guess


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One of build_model, make_batch, compute_loss, make_optimizer."""

    function: Callable[..., Any]
    label: str  # as the report prints it
    guess: Guess | None = None
    has_target: bool = False  # a batch only: it is the pair (what the model is fed, what the loss compares with)
    variants: Mapping[str, Callable[[], Any]] = field(default_factory=dict)  # a model only: smaller ones of its kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What TARGET itself offers, before flags are laid over it."""

    name: str
    content: bytes  # of the file: what the report's input hash covers
    scope: Mapping[str, Any]  # for expressions
    model: Part
    batch: Part | None = None
    batch_flag: str = ""  # the flag to ask for where there is no batch; "": one derived from the model itself
    loss: Part | None = None
    optimizer: Part | None = None
    variants: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    batches: Callable[[int], Any] | None = None
    evaluate: Callable[[Any], float] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()  # statements of the file that were left out, and why


# A default this large may be there for the record and not what anybody trains: llama2.c's is 6.7 B parameters.
LARGE_DEFAULT = 1_000_000_000


class Builder:
    """Builds the model, guarded, and remembers the last one: expressions may name it (`model.init_hidden(B)`)."""

    def __init__(self, part: Part, *, skipped: Sequence[str] = ()) -> None:
        self._part = part
        self._skipped = skipped
        self._last: weakref.ref[Any] | None = None
        self.guess = part.guess
        self._why = part.guess.why if part.guess else ""

    def __call__(self) -> Any:
        try:
            with guarded():
                model = self._part.function()
        except NameError as error:
            if self._skipped:
                error.add_note(f"lines left out of the file: {'; '.join(self._skipped)}")
            raise
        self._last = weakref.ref(model)
        if self.guess is not None and (size := _num_parameters(model)) >= LARGE_DEFAULT:
            why = f"{self._why}; its defaults make {size / 1e9:.1f} B parameters: is this what is trained?"
            self.guess = replace(self.guess, why=why)
        return model

    def last(self) -> Any:
        model = self._last() if self._last else None
        if model is None:
            raise WorkloadError("the batch names `model`, and no model is built yet")
        return model


def _num_parameters(model: Any) -> int:
    return sum(p.numel() for p in model.parameters()) if hasattr(model, "parameters") else 0
