"""The best recipe for one device: every option in turn, least invasive first, and only as far as it is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from advisor.errors import AdvisorError
from advisor.options.base import Facts, Option, Recipe, Risk
from advisor.search.candidates import Pricer, divisors, fits, step_s
from advisor.search.plan import Candidate, Rejection, Rung
from advisor.trace.records import Phase
from advisor.units import format_bytes

# The savers of specs/optimisation section 5, by what they risk and then by what they cost; values in the order tried.
LADDER: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("packing", ()),
    ("precision", ("tf32", "amp-bf16", "amp-fp16")),
    ("memory_format", ("channels_last",)),
    ("attention", ("sdpa",)),
    ("loss", ("chunked",)),
    ("optimizer", ("fused", "for-loop")),
    ("micro_batch", ("smaller",)),
    ("checkpointing", ("selective", "all")),
    ("optimizer_in_backward", ("on",)),
    ("optimizer_state", ("adam-8bit",)),
    ("offload_activations", ("on",)),
    ("offload_optimizer", ("on",)),
    ("optimizer_state", ("adam-4bit",)),
    ("precision", ("bf16-kahan", "bf16")),
    ("optimizer_state", ("adafactor",)),
    ("lora", ()),
    ("compile", ("on",)),
    ("variant", ()),
)

# Options that buy memory with time, or only memory: nothing to gain from where the step fits.
MEMORY_ONLY = frozenset({"checkpointing", "optimizer_in_backward", "offload_activations", "offload_optimizer"})

# Above so many times the usable memory, recomputing everything is tried without trying a part first. Our choice.
FAR = 2.0

# An option that moves neither memory nor time by this much is not worth a line in somebody's script. Our choice.
WORTHWHILE = 0.02

_ORDER = list(Risk)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSearch:
    """What the search on one device found."""

    baseline: Candidate
    best: Candidate | None  # None: nothing fits
    nearest: Candidate  # smallest requirement met on the way
    ladder: tuple[Rung, ...]
    rejections: tuple[Rejection, ...]
    max_micro_batch_size: int | None
    max_sequence_length: int | None


def search_device(pricer: Pricer, facts: Facts, options: Mapping[str, Option], start: Recipe) -> DeviceSearch:
    """Walk the ladder from `start`.

    An option is taken if memory is short and it helps; or if memory suffices and it shortens the step, as long as it
    risks nothing, or the goal is missed, or no goal is given and it risks numerics only.
    """
    walk = _Walk(pricer, facts, options, pricer.single(start, "the step as it is"))
    baseline = walk.current
    ladder = LADDER
    if walk.weights_do_not_fit():
        walk.leap()
        ladder = ()
    for name, preferred in ladder:
        if name == "micro_batch":
            walk.try_smaller_micro_batch()
        elif name in options:
            walk.try_option(options[name], preferred)
    walk.fill_micro_batch()
    best = walk.current if fits(walk.current) else None
    samples = walk.samples_in_memory()
    return DeviceSearch(
        baseline=baseline,
        best=best,
        nearest=min(walk.seen, key=lambda c: c.estimate.memory.required_bytes),
        ladder=tuple(walk.rungs),
        rejections=tuple(walk.rejections),
        max_micro_batch_size=None if samples is None else int(samples),
        max_sequence_length=None if samples is None else walk.max_sequence(samples),
    )


# Where not even the weights fit, one lean recipe is priced at once: it says how far away one device is, and what a
# rank of a cluster would start from.
LEAP: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("precision", ("amp-bf16", "amp-fp16")),
    ("loss", ("chunked",)),
    ("checkpointing", ("all",)),
    ("optimizer_state", ("adam-8bit",)),
)


class _Walk:
    """The state of one descent."""

    def __init__(self, pricer: Pricer, facts: Facts, options: Mapping[str, Option], baseline: Candidate) -> None:
        self.pricer, self.facts, self.options = pricer, facts, options
        self.current = baseline
        self.seen: list[Candidate] = [baseline]
        self.rungs: list[Rung] = []
        self.rejections: list[Rejection] = []

    # ---- options -----------------------------------------------------------------------------------------------

    def try_option(self, option: Option, preferred: tuple[str, ...]) -> None:
        facts = self._facts_now()
        legal = list(option.values(facts))
        values = [value for value in preferred if value in legal[1:]] if preferred else legal[1:]
        if "amp-bf16" in values:  # fp16 takes the same bytes and rate, and a loss scale to look after
            values = [value for value in values if value != "amp-fp16"]
        if option.name == "optimizer" and self.current.estimate.memory.peak.phase is not Phase.OPTIMIZER:
            values = [value for value in values if value != "for-loop"]  # lowers the peak of the optimizer only
        if not fits(self.current):  # it changes no byte
            values = [value for value in values if value != "tf32"]
        if option.name == "checkpointing" and self._excess() > FAR:
            values = [value for value in values if value != "selective"]
        if fits(self.current) and self.current.plan.recipe.choice(option.name) is not None:
            values = []  # what made room stays
        if not values:
            if len(legal) == 1 and not any(rung.option == option.name for rung in self.rungs):
                reason = option.why_not(facts) or "nothing to choose here"
                self.rungs.append(self._rung(option, legal[0], None, taken=False, why=reason))
            return
        for value in values:
            taken = self._try(option, value)
            if taken and fits(self.current) and option.name != "precision":
                return

    def _excess(self) -> float:
        memory = self.current.estimate.memory
        return memory.required_bytes / memory.usable_bytes

    def _facts_now(self) -> Facts:
        """The facts, with the accumulation that the walk has arrived at."""
        recipe = self.current.plan.recipe
        trace = replace(
            self.facts.trace, micro_batch_size=recipe.micro_batch_size, num_microbatches=recipe.num_microbatches
        )
        return replace(self.facts, trace=trace)

    def _try(self, option: Option, value: str) -> bool:
        risk = option.risk(value)
        if (reason := option.unpredictable(value)) is not None:
            self.rungs.append(self._rung(option, value, None, taken=False, why=reason))
            return False
        if (reason := self._not_needed(option.name, risk)) is not None:
            self.rungs.append(self._rung(option, value, None, taken=False, why=reason))
            return False
        recipe = self.current.plan.recipe.choosing(option.name, value)
        try:
            candidate = self.pricer.single(recipe, f"{option.title}: {value}")
        except AdvisorError as error:
            why = f"not possible here: {error.message.splitlines()[-1]}"
            self.rungs.append(self._rung(option, value, None, taken=False, why=why))
            return False
        taken, why = self._judge(candidate, risk)
        if option.name == "variant":  # another model is offered, never taken for the user, nor the nearest miss
            taken, why = False, "a smaller model: offered, not taken"
        else:
            self.seen.append(candidate)
        self.rungs.append(self._rung(option, value, candidate, taken=taken, why=why))
        if taken:
            self.current = candidate
        return taken

    def _not_needed(self, option: str, risk: Risk) -> str | None:
        """A reason not even to try, so that nobody waits for what would not be taken."""
        if option in MEMORY_ONLY and fits(self.current):
            return "not needed: it fits, and this saves memory only"
        enough = fits(self.current) and self.pricer.meets_goal(self.current)
        has_goal = self.pricer.goal.deadline_s is not None
        allowed = Risk.NOTHING if has_goal else Risk.NUMERICS
        if enough and _ORDER.index(risk) > _ORDER.index(allowed):
            return "not needed: it fits" + (" and meets the goal" if has_goal else "")
        return None

    def _judge(self, candidate: Candidate, risk: Risk) -> tuple[bool, str]:
        now, before = candidate.estimate.memory, self.current.estimate.memory
        less_memory = 1 - now.required_bytes / before.required_bytes
        rate, rate_before = candidate.samples_per_s, self.current.samples_per_s
        less_time = 1 - rate_before / rate if rate and rate_before else 0.0
        packs = candidate.plan.recipe.choice("packing") != self.current.plan.recipe.choice("packing")
        effect = f"{_change(-less_memory)} memory, {_change(-less_time)} {'time a sample' if packs else 'step time'}"
        if not fits(self.current):
            if less_memory >= WORTHWHILE or now.fits:
                return True, f"taken: {effect}" + ("; now it fits" if now.fits else "; does not fit yet")
            return False, f"does not make room: {effect}"
        if not now.fits:
            return False, f"would no longer fit: {effect}"
        if less_time >= WORTHWHILE:
            return True, f"taken: {effect}"
        if risk is Risk.NOTHING and less_memory >= WORTHWHILE and less_time > -WORTHWHILE:
            return True, f"taken: {effect}"
        return False, f"not needed: {effect}"

    def _rung(self, option: Option, value: str, candidate: Candidate | None, *, taken: bool, why: str) -> Rung:
        return Rung(
            label=f"{option.title}: {value}",
            option=option.name,
            value=value,
            risk=option.risk(value),
            candidate=candidate,
            taken=taken,
            why=why,
        )

    def weights_do_not_fit(self) -> bool:
        """Whether the parameters alone, two bytes each, are more than the device has (adapters may take fewer)."""
        if self.facts.fine_tune:
            return False
        return 2 * self.facts.trace.num_parameters > self.current.estimate.memory.usable_bytes

    def leap(self) -> None:
        """Price one lean recipe with one sample at a time, instead of walking the ladder."""
        facts, recipe = self._facts_now(), self.current.plan.recipe
        whole = recipe.micro_batch_size * recipe.num_microbatches
        lean = replace(recipe, micro_batch_size=1, num_microbatches=whole)
        weights = format_bytes(2 * facts.trace.num_parameters)
        why = f"taken together with the others: the weights alone take {weights} in 16 bits"
        rungs: list[Rung] = []
        for name, values in LEAP:
            if (option := self.options.get(name)) is None or lean.choice(name) is not None:
                continue
            if (value := next((v for v in values if v in option.values(facts)[1:]), None)) is not None:
                lean = lean.choosing(name, value)
                rungs.append(self._rung(option, value, None, taken=True, why=why))
        candidate = self.pricer.single(lean, "a lean recipe")
        self.seen.append(candidate)
        self.current = candidate
        self.rungs += rungs
        self._micro_batch_rung(candidate, taken=True, why=f"{why}; nothing makes room on one device")

    # ---- micro-batch -------------------------------------------------------------------------------------------

    def try_smaller_micro_batch(self) -> None:
        """Accumulate over smaller micro-batches at the held global batch: the largest that fits, else one sample."""
        recipe = self.current.plan.recipe
        if fits(self.current) or recipe.micro_batch_size == 1:
            why = "not needed: it fits" if fits(self.current) else "one sample already"
            self._micro_batch_rung(None, taken=False, why=why)
            return
        smallest = self._at(1)
        if smallest is None:
            return
        candidate = next((c for c in self._between(smallest, self.current) if fits(c)), smallest)
        sizes = candidate.plan.recipe
        why = f"{sizes.num_microbatches} micro-batches of {sizes.micro_batch_size}"
        why += "; now it fits" if fits(candidate) else "; does not fit yet"
        self.current = candidate
        self._micro_batch_rung(candidate, taken=True, why=f"taken: {why}")

    def fill_micro_batch(self) -> None:
        """Room that later options made goes to a larger micro-batch, where that shortens the step."""
        recipe = self.current.plan.recipe
        if not fits(self.current) or recipe.num_microbatches == 1:
            return
        for candidate in self._between(self.current, None):
            if fits(candidate) and step_s(candidate) < step_s(self.current):
                self.current = candidate
                sizes = candidate.plan.recipe
                why = f"taken: there is room for {sizes.micro_batch_size} samples at a time"
                self._micro_batch_rung(candidate, taken=True, why=why)
                return

    def _between(self, small: Candidate, large: Candidate | None) -> Iterator[Candidate]:
        """Divisors of the held batch that should fit by linear growth of memory, largest first; two are tried."""
        recipe = small.plan.recipe
        whole = recipe.micro_batch_size * recipe.num_microbatches
        top = whole if large is None else large.plan.recipe.micro_batch_size
        room = small.estimate.memory.usable_bytes
        slope = self._bytes_per_sample(small, large)
        if slope is None:
            return
        limit = recipe.micro_batch_size + (room - small.estimate.memory.high_bytes) / max(slope, 1.0)
        sizes = [b for b in divisors(whole) if recipe.micro_batch_size < b <= min(limit, top)]
        for size in sorted(sizes, reverse=True)[:2]:
            candidate = self._at(size)
            if candidate is not None:
                yield candidate

    def _bytes_per_sample(self, small: Candidate, large: Candidate | None) -> float | None:
        if large is None:
            size = small.plan.recipe.micro_batch_size
            large = self._at(next(b for b in divisors(size * small.plan.recipe.num_microbatches) if b > size))
            if large is None:
                return None
        bytes_apart = large.estimate.memory.required_bytes - small.estimate.memory.required_bytes
        return bytes_apart / (large.plan.recipe.micro_batch_size - small.plan.recipe.micro_batch_size)

    def _at(self, micro_batch_size: int) -> Candidate | None:
        recipe = self.current.plan.recipe
        whole = recipe.micro_batch_size * recipe.num_microbatches
        if whole % micro_batch_size:
            return None
        changed = replace(recipe, micro_batch_size=micro_batch_size, num_microbatches=whole // micro_batch_size)
        try:
            candidate = self.pricer.single(changed, f"micro-batch {micro_batch_size}")
        except AdvisorError as error:
            reason = error.message.splitlines()[-1]
            self.rejections.append(Rejection(plan=None, label=f"micro-batch {micro_batch_size}", reason=reason))
            return None
        self.seen.append(candidate)
        return candidate

    def _micro_batch_rung(self, candidate: Candidate | None, *, taken: bool, why: str) -> None:
        recipe = (candidate or self.current).plan.recipe
        self.rungs.append(
            Rung(
                label=f"Micro-batch {recipe.micro_batch_size} x {recipe.num_microbatches} accumulated",
                option="micro_batch",
                value=str(recipe.micro_batch_size),
                risk=Risk.NOTHING,
                candidate=candidate,
                taken=taken,
                why=why,
            )
        )

    # ---- how far it goes ---------------------------------------------------------------------------------------

    def max_sequence(self, samples: float) -> int | None:
        """Longest sequence of one sample that fits: memory is linear in tokens where attention keeps no scores."""
        tokens = self.facts.trace.tokens_per_sample
        if tokens is None:
            return None
        trace = self.pricer.trace(self.current.plan.recipe)
        fused = any(op.attribute("kernel") in ("flash", "efficient") for op in trace.steady_ops())
        return int(samples * tokens) if fused else None

    def samples_in_memory(self) -> float | None:
        """Largest micro-batch that fits with the recipe found, by linear growth between two sizes that were traced."""
        if not fits(self.current):
            return None
        recipe = self.current.plan.recipe
        alike = {
            c.plan.recipe.micro_batch_size: c
            for c in self.seen
            if c.plan.recipe.choices == recipe.choices
            and (c.plan.recipe.num_microbatches > 1) == (recipe.num_microbatches > 1)
        }
        other = next((b for b in alike if b != recipe.micro_batch_size), None)
        if other is None:
            second = replace(recipe, micro_batch_size=max(1, recipe.micro_batch_size * 2))
            try:
                alike[second.micro_batch_size] = self.pricer.single(second, f"micro-batch {second.micro_batch_size}")
            except AdvisorError:
                return None
            other = second.micro_batch_size
        here, there = self.current.estimate.memory, alike[other].estimate.memory
        slope = (there.required_bytes - here.required_bytes) / (other - recipe.micro_batch_size)
        if slope <= 0:
            return None
        return recipe.micro_batch_size + (here.usable_bytes - here.high_bytes) / slope


def _change(share: float) -> str:
    return "same" if abs(share) < 0.005 else f"{100 * share:+.0f} %"
