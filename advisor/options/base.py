"""The contract of a single-device option, and `Recipe`: one value for each of them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from advisor.errors import UsageError
from advisor.workload.spec import Phase

if TYPE_CHECKING:
    from advisor.hardware.profile import DeviceProfile
    from advisor.trace.records import OpRecord, StepTrace
    from advisor.workload.spec import Workload


# Classes of torch.optim, as of torch 2.13.
TORCH_OPTIMIZERS = frozenset(
    "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam RAdam RMSprop Rprop SGD SparseAdam".split()
)


class Risk(StrEnum):
    """What taking an option may change, from nothing to everything; the search takes the mildest first."""

    NOTHING = "nothing"
    NUMERICS = "numerics"
    OPTIMISATION = "changes the optimisation"
    MODEL = "changes the model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What an option may know when it lists its legal values. No torch."""

    trace: StepTrace  # the workload as it is
    device: DeviceProfile
    fine_tune: bool = False  # the job is said to be a fine-tune: LoRA and QLoRA make sense
    mean_sequence_fill: float | None = None  # share of non-padding tokens, where a length distribution is given
    variants: tuple[str, ...] = ()

    def forward_ops(self) -> list[OpRecord]:
        """Operators of one forward pass: the steady step's first micro-batch."""
        return [op for op in self.trace.steady_ops() if op.phase is Phase.FORWARD and op.microbatch == 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What the user's code calls the things that snippets speak of."""

    optimizer: str = "AdamW"  # the class
    blocks: str = "model.blocks"  # expression of the repeated blocks

    @property
    def optimizer_class(self) -> str:
        """`torch.optim.SGD`; by its name alone where the class is of another library or the user's own."""
        return f"torch.optim.{self.optimizer}" if self.optimizer in TORCH_OPTIMIZERS else self.optimizer


USUAL_NAMES = Names()


class Option(Protocol):
    """One knob: a file in this folder that defines `OPTION`. `values(...)[0]` is the default and means "as it is"."""

    name: str  # the file's name; also the keyword of `advisor.estimate`
    order: int  # applied low to high
    title: str  # "Activation checkpointing"

    def values(self, facts: Facts) -> Sequence[str]:
        """Legal values for this workload on this device, the default first; that alone where the option is idle."""
        ...

    def why_not(self, facts: Facts) -> str | None:
        """If only the default is legal: the reason, in words for the report."""
        ...

    def risk(self, value: str) -> Risk: ...

    def apply(self, workload: Workload, value: str) -> Workload:
        """Pure; the default value is the identity. Raises `UsageError` for a value it does not know."""
        ...

    def snippet(self, value: str, names: Names = USUAL_NAMES) -> str:
        """The code the user would paste; "" for the default."""
        ...

    def unpredictable(self, value: str) -> str | None:
        """Why the cost model can't price `value`, which is then measured only; `None` for what it can."""
        return None


def unknown_value(option: Option, value: str, known: Sequence[str]) -> UsageError:
    """The error for a value `option` does not know; `known` lists those it does, or their patterns."""
    close = difflib.get_close_matches(value, known, n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    return UsageError(f"{option.name}: unknown value {value!r}", hint=f"{meant}known: {', '.join(known)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One exact single-device configuration."""

    micro_batch_size: int
    num_microbatches: int = 1
    choices: tuple[tuple[str, str], ...] = ()  # (option name, value), only where it is not the default; sorted by name

    def choice(self, option: str) -> str | None:
        return dict(self.choices).get(option)

    def choosing(self, option: str, value: str | None) -> Recipe:
        """This recipe with one option set, or put back to its default with `None`."""
        choices = dict(self.choices)
        choices.pop(option, None)
        if value is not None:
            choices[option] = value
        return replace(self, choices=tuple(sorted(choices.items())))
