"""What a change of the global batch means for the learning rate and its companions: chooses among LR-1 to LR-15.

The first question is whether the global batch changes at all. If not, nothing about the optimisation does: up to
`num_microbatches` devices can take over gradient accumulation without any learning-rate question.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from advisor.advice import batch_rules as rules
from advisor.advice.batch_layout import BatchLayout, batch_norm_checks, loss_checks
from advisor.advice.critical_batch import ZHANG_EXCESS, critical_batch_range, data_cost, k_max
from advisor.advice.result import LearningRateAdvice
from advisor.units import format_count, format_percent

# Fine-tuning, a design choice: short runs at small rates keep the rate, or follow the square root up to this ratio.
_LARGEST_FINE_TUNE_RATIO = 4.0
_LARGEST_FINE_TUNE_RATE = 5e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """What the rules need to know of the job; whatever is not known stays at its default."""

    optimizer: str  # class name: "AdamW"
    learning_rate: float | None = None
    betas: tuple[float, ...] = ()
    weight_decay: float | None = None
    is_language_model: bool = False
    tokens_per_sample: int | None = None
    tokens: float | None = None  # of the whole job
    fine_tune: bool = False
    noise_scale: float | None = None  # measured gradient noise scale, in samples
    uses_batch_norm: bool = False


class _Family(StrEnum):
    SGD = "SGD"
    ADAM = "the Adam family"
    LAYERWISE = "LARS and LAMB"
    MUON = "Muon"
    ADAFACTOR = "Adafactor"
    UNKNOWN = "unknown"


# First match in the lower-case class name, so that "AdamW8bit" and "DeepSpeedCPUAdam" count as Adam.
_FAMILIES = (
    ("adafactor", _Family.ADAFACTOR),
    ("adamax", _Family.UNKNOWN),
    ("lamb", _Family.LAYERWISE),
    ("lars", _Family.LAYERWISE),
    ("muon", _Family.MUON),
    ("adam", _Family.ADAM),
    ("rmsprop", _Family.ADAM),
    ("sgd", _Family.SGD),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """The rule taken, its factor on the learning rate, and what to say about it."""

    rule: str
    factor: float | None
    source: str
    why: str
    warnings: tuple[str, ...] = ()


def advise(job: TrainingJob, *, old: BatchLayout, new: BatchLayout) -> LearningRateAdvice:
    """Advice for a job whose step goes from layout `old` to `new`."""
    batch_old, batch_new = old.global_batch_size, new.global_batch_size
    checks = loss_checks(old, new=new, is_language_model=job.is_language_model)
    if job.uses_batch_norm:
        checks += batch_norm_checks(old, new=new)
    if batch_old == batch_new:
        return LearningRateAdvice(
            changed=False,
            rule="",
            old_lr=job.learning_rate,
            new_lr=job.learning_rate,
            factor=1.0,
            batch_old=batch_old,
            batch_new=batch_new,
            warmup="unchanged",
            sentence=f"unchanged, because the global batch is unchanged ({batch_old} samples): learning rate, warm-up, "
            "betas and weight decay stay as they are",
            warnings=checks,
            companions=(),
            source="the same global batch is the same optimisation",
        )
    choice = _choose(job, batch_old, batch_new)
    return LearningRateAdvice(
        changed=True,
        rule=choice.rule,
        old_lr=job.learning_rate,
        new_lr=None if job.learning_rate is None or choice.factor is None else job.learning_rate * choice.factor,
        factor=choice.factor,
        batch_old=batch_old,
        batch_new=batch_new,
        warmup=_warmup(job, batch_new / batch_old, choice),
        sentence=_sentence(job, batch_old, batch_new, choice),
        warnings=(*choice.warnings, *_feasibility(job, batch_old, batch_new), *checks),
        companions=_companions(job, old, new, choice),
        source=choice.source,
    )


def _family(optimizer: str) -> _Family:
    name = optimizer.lower()
    return next((family for needle, family in _FAMILIES if needle in name), _Family.UNKNOWN)


def _choose(job: TrainingJob, batch: int, new_batch: int) -> _Choice:
    k = new_batch / batch
    family = _family(job.optimizer)
    if family is _Family.UNKNOWN:
        return _Choice(
            rule="",
            factor=None,
            source="no published rule is known",
            why=f"no published rule for {job.optimizer}: sweep the learning rate again",
        )
    if family is _Family.ADAFACTOR:
        return _Choice(
            rule="relative step",
            factor=1.0,
            source="derived: Adafactor computes its step size from the parameters",
            why="Adafactor with relative steps derives its own rate",
            warnings=("an Adafactor with a fixed learning rate (relative_step=False) has no published rule",),
        )
    if job.fine_tune:
        return _fine_tune(job, k)
    if family is _Family.LAYERWISE:
        return _Choice(
            rule="LEGW",
            factor=rules.sqrt_learning_rate(1.0, k=k),
            source="You et al. 2019, arXiv:1901.08256",
            why="square root of the batch ratio",
        )
    if family is _Family.MUON:
        return _Choice(
            rule="LR-2",
            factor=rules.sqrt_learning_rate(1.0, k=k),
            source="assumed: nanochat scales Muon by the square root and calls it not carefully studied",
            why="square root of the batch ratio",
            warnings=("no published evidence for this rule with Muon: check it with a short sweep",),
        )
    if job.is_language_model and family is _Family.ADAM:
        return _language_model(job, batch, new_batch)
    if job.noise_scale is not None:
        return _measured_noise(job.noise_scale, family, batch, k)
    return _linear(batch, new_batch) if family is _Family.SGD else _square_root(k)


def _fine_tune(job: TrainingJob, k: float) -> _Choice:
    scaled = k <= _LARGEST_FINE_TUNE_RATIO
    warnings = [
        "short fine-tuning runs on little data follow no published law: compare with a short run, never scale linearly"
    ]
    if job.learning_rate is not None and job.learning_rate > _LARGEST_FINE_TUNE_RATE:
        warnings.append(f"this rule is meant for fine-tuning rates up to {_LARGEST_FINE_TUNE_RATE:g}")
    return _Choice(
        rule="LR-2",
        factor=rules.sqrt_learning_rate(1.0, k=k) if scaled else 1.0,
        source="assumed: a design choice for fine-tuning at rates up to 5e-5",
        why="square root of the batch ratio (fine-tuning, at most 4 times the batch)"
        if scaled
        else "kept: fine-tuning at more than 4 times the batch",
        warnings=tuple(warnings),
    )


def _language_model(job: TrainingJob, batch: int, new_batch: int) -> _Choice:
    ignored = (
        ("the measured gradient noise scale was not used: for AdamW language models it is orders of magnitude too low",)
        if job.noise_scale is not None
        else ()
    )
    if job.tokens is None or job.tokens_per_sample is None:
        choice = _square_root(new_batch / batch)
        limit = "the square root holds only up to the optimal batch: give the tokens of the whole job to check it"
        return _Choice(
            rule=choice.rule,
            factor=choice.factor,
            source=choice.source,
            why=choice.why,
            warnings=(limit, *ignored),
        )
    old_tokens, new_tokens = batch * job.tokens_per_sample, new_batch * job.tokens_per_sample
    low, high = rules.optimal_batch_range(job.tokens)
    cap = rules.optimal_batch(job.tokens)
    factor, factor_low, factor_high = (
        rules.capped_sqrt_factor(old_tokens, new_batch=new_tokens, cap=tokens) for tokens in (cap, low, high)
    )
    warnings = []
    if not math.isclose(factor_low, factor_high, rel_tol=0.005):  # closer does not show in three digits
        factors = _range(*sorted((factor_low, factor_high)))
        warnings.append(f"the laws for the optimal batch disagree here: the factor is {factors}")
    fitted_low, fitted_high = rules.FITTED_TOKENS
    if not fitted_low <= job.tokens <= fitted_high:
        warnings.append(
            f"{format_count(job.tokens)} tokens is an extrapolation: the laws were fitted on "
            f"{format_count(fitted_low)} to {format_count(fitted_high)}"
        )
    return _Choice(
        rule="LR-15",
        factor=factor,
        source="1,911 public Step Law runs re-analysed (arXiv:2503.04715); optimal batch: Step Law and Power Lines",
        why=f"square root of the batch ratio up to the optimal batch of {format_count(cap)} tokens "
        f"({format_count(low)} to {format_count(high)}), held beyond",
        warnings=(*warnings, *ignored),
    )


def _measured_noise(noise_scale: float, family: _Family, batch: int, k: float) -> _Choice:
    gain = rules.gain(batch, k=k, noise_scale=noise_scale)
    sgd = family is _Family.SGD
    return _Choice(
        rule="LR-4",
        factor=gain if sgd else gain**0.5,
        source="McCandlish et al. 2018, arXiv:1812.06162, eq. 2.6"
        + ("" if sgd else "; exponent 1/2 for Adam: AdaptDL"),
        why=f"from the measured gradient noise scale of {format_count(noise_scale)} samples",
    )


def _linear(batch: int, new_batch: int) -> _Choice:
    limit = rules.LINEAR_RULE_LIMIT
    factor = rules.linear_learning_rate(1.0, k=min(new_batch, limit) / min(batch, limit))
    beyond = max(batch, new_batch) > limit
    return _Choice(
        rule="LR-1",
        factor=factor,
        source="Goyal et al. 2017, arXiv:1706.02677",
        why="linear in the batch" + (f" up to {limit} samples, held beyond" if beyond else ""),
        warnings=(
            f"the linear rule was shown up to {limit} images (ResNet-50 on ImageNet): beyond it the rate is held, an "
            "assumption to check with a short sweep",
        )
        if beyond
        else (),
    )


def _square_root(k: float) -> _Choice:
    return _Choice(
        rule="LR-2",
        factor=rules.sqrt_learning_rate(1.0, k=k),
        source="Malladi et al. 2022, arXiv:2205.10287",
        why="square root of the batch ratio",
    )


def _sentence(job: TrainingJob, batch: int, new_batch: int, choice: _Choice) -> str:
    grows = f"the global batch goes from {batch} to {new_batch} samples"
    if choice.factor is None:
        return f"{grows}: {choice.why}"
    rule = f"{choice.rule}: {choice.why}"
    if job.learning_rate is None:
        change = (
            "keep the learning rate" if choice.factor == 1 else f"multiply the learning rate by {choice.factor:.3g}"
        )
        return f"{grows}: {change} ({rule})"
    if choice.factor == 1:
        return f"{grows}: the learning rate stays {job.learning_rate:.3g} ({rule})"
    return f"{grows}: learning rate {job.learning_rate:.3g} -> {job.learning_rate * choice.factor:.3g} ({rule})"


def _warmup(job: TrainingJob, k: float, choice: _Choice) -> str:
    """The longer of the same samples and the same steps; never below LR-10."""
    family = _family(job.optimizer)
    if choice.rule == "LR-1" and k > 1:
        return f"gradual, from the old learning rate, over {rules.LINEAR_RULE_WARMUP_EPOCHS} epochs"
    if family is _Family.LAYERWISE:
        return f"the same number of steps: {k:.3g} times as many epochs"
    kept = "the same number of steps" if k > 1 else "the same number of samples"
    if family is _Family.ADAM and len(job.betas) > 1 and job.betas[1] < 1:
        return f"{kept}, at least {rules.least_warmup_steps(job.betas[1]):.0f} steps (LR-10)"
    return kept


def _companions(job: TrainingJob, old: BatchLayout, new: BatchLayout, choice: _Choice) -> tuple[str, ...]:
    k = new.global_batch_size / old.global_batch_size
    lines = []
    if _family(job.optimizer) is _Family.ADAM and len(job.betas) > 1:
        beta2 = rules.half_life_beta2(job.betas[1], k=k)
        lines.append(f"betas: keep; the alternative is to keep the learning rate and set beta2 to {beta2:.5g} (LR-6)")
    if "adamw" in job.optimizer.lower() and job.weight_decay and choice.factor is not None:
        decay = rules.timescale_weight_decay(job.weight_decay, k=k, learning_rate_factor=choice.factor)
        lines.append(f"weight decay: {job.weight_decay:g} -> {decay:.3g} keeps its timescale (LR-8)")
    lines.append(
        f"model average, if there is one: decay -> decay**{k:.3g}, 0.9999 -> {rules.ema_decay(0.9999, k=k):.7g} (LR-7)"
    )
    lines.append(
        f"at the same number of epochs there are {1 / k:.3g} times the steps: restate in samples what is counted in "
        "steps (milestones, cosine length, evaluation, checkpoints, early stopping)"
    )
    if new.num_replicas > old.num_replicas:
        lines.append("scheduler: Accelerate steps it once per process and optimizer step unless told otherwise")
    if job.noise_scale is not None and not job.is_language_model:
        ratio = rules.clip_norm_ratio(old.global_batch_size, k=k, noise_scale=job.noise_scale)
        lines.append(
            f"gradient norms become {ratio:.3g} times as large: a fixed clipping threshold acts accordingly (LR-14)"
        )
    return tuple(lines)


def _feasibility(job: TrainingJob, batch: int, new_batch: int) -> tuple[str, ...]:
    """LR-13 and CB-4: does the same data still reach the same loss?"""
    k = new_batch / batch
    if k <= 1 or job.fine_tune:
        return ()
    if (critical := _critical_batch(job)) is None:
        return ("the critical batch is not known: whether a larger batch needs more data for the same loss is open",)
    low, high, origin = critical
    least, most = (data_cost(batch, k=k, critical_batch=bound) for bound in (high, low))
    text = f"the same loss needs {_range(least, most)} times the data (LR-13, critical batch: {origin})"
    if job.tokens is not None and job.tokens_per_sample is not None:
        left = job.tokens / job.tokens_per_sample / new_batch
        text += f": {format_count(left)} steps are left, {_range(left * least, left * most)} are needed"
    waste = format_percent(ZHANG_EXCESS)
    earliest, latest = (k_max(batch, critical_batch=bound, waste=ZHANG_EXCESS) for bound in (low, high))
    if k > latest:
        text += f"; beyond {_range(earliest, latest)} times the batch more than {waste} is wasted (CB-4)"
    elif k > earliest:
        text += f"; whether more than {waste} is wasted (CB-4) is undetermined: branched training decides"
    return (text,)


def _critical_batch(job: TrainingJob) -> tuple[float, float, str] | None:
    """Low, high, in samples, and where they are from."""
    if job.is_language_model and job.tokens is not None and job.tokens_per_sample is not None:
        low, high = critical_batch_range(job.tokens)
        return low / job.tokens_per_sample, high / job.tokens_per_sample, "CB-8 and CB-7"
    if job.noise_scale is not None and not job.is_language_model:
        return job.noise_scale, job.noise_scale, "gradient noise scale, right within a factor of ten"
    return None


def _range(low: float, high: float) -> str:
    first, last = (f"{value:.3g}" if value < 1000 else format_count(value) for value in (low, high))
    return first if first == last else f"{first} to {last}"
