"""Is a smaller model good enough? Loss laws of decoder language models: Q-1 to Q-5.

Symbols: `N` parameters, `D` training tokens, `C = 6ND` FLOPs; losses in nats per token. Nothing here holds for another
kind of model: there only measured short runs are defensible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

# Print with every predicted loss.
CAVEATS = (
    "decoder language models only, 44M to 16B parameters; MassiveText and its tokenizer: the irreducible loss does not "
    "transfer to other data, differences at equal data do approximately",
    "loss is not task accuracy; not covered: fine-tuning, distillation, mixture of experts, vision and tabular models",
    "better: refit E, A and B (exponents fixed) on three or more of your own runs with completed learning-rate decay",
    "a prediction more than ten times beyond the compute of the fitted runs is an extrapolation",
)
# 90th percentile of |residual| of Besiroglu's fit on the 240 reconstructed Chinchilla points, recomputed.
IN_RANGE_ERROR_NATS = 0.025


@dataclass(frozen=True, slots=True, kw_only=True)
class LossLaw:
    """Q-1. `L(N, D) = E + A/N**alpha + B/D**beta`, nats per token."""

    a: float
    b: float
    irreducible: float  # E
    alpha: float
    beta: float
    source: str

    def loss(self, parameters: float, tokens: float) -> float:
        """Q-1."""
        return self.for_size(parameters) + float(self.b / tokens**self.beta)

    def for_size(self, parameters: float) -> float:
        """The loss that a model of this size approaches with endless data."""
        return self.irreducible + float(self.a / parameters**self.alpha)

    def compute_optimal(self, flops: float) -> tuple[float, float]:
        """Q-2. (N, D) of least loss at `C = 6ND`: `N = G (C/6)**(beta/(alpha+beta))`."""
        ratio = (self.alpha * self.a / (self.beta * self.b)) ** (1 / (self.alpha + self.beta))
        parameters = ratio * (flops / 6) ** (self.beta / (self.alpha + self.beta))
        return parameters, flops / 6 / parameters

    def tokens_to_match(self, parameters: float, *, target_loss: float) -> float:
        """Q-3. Tokens at which a model of this size reaches the loss; infinite if it never does."""
        left = target_loss - self.for_size(parameters)
        return math.inf if left <= 0 else float((self.b / left) ** (1 / self.beta))

    def loss_in_time(self, parameters: float, *, seconds: float, flops_per_s: float) -> float:
        """Loss after a fixed time (or budget / price) at an achieved rate: Q-1 at `D = F T/(6N)`."""
        return self.loss(parameters, flops_per_s * seconds / (6 * parameters))


BESIROGLU = LossLaw(
    a=482.01,
    b=2085.43,
    irreducible=1.8172,
    alpha=0.3478,
    beta=0.3658,
    source="Besiroglu et al. 2024, arXiv:2404.10102, notebook of the authors' repository",
)
# Printed values of Hoffmann et al. 2022 (Chinchilla): they over-predict the loss by 0.045 nats. To compare with only.
HOFFMANN = LossLaw(
    a=406.4, b=410.7, irreducible=1.69, alpha=0.34, beta=0.28, source="Hoffmann et al. 2022, arXiv:2203.15556"
)


def effective_tokens(unique_tokens: float, *, epochs: float) -> float:
    """Q-4. What repeated data are worth: `U + U R (1-exp(-(epochs-1)/R))`, R = 15.387756.

    Source: Muennighoff et al. 2023, arXiv:2305.16264, official repository; fitted with that paper's own loss law.
    """
    worth = 15.387756
    return unique_tokens * (1 + worth * (1 - math.exp(-(epochs - 1) / worth)))


def seeds_needed(*, sd: float, difference: float, significance: float = 0.05, power: float = 0.8) -> float:
    """Q-5. Runs per arm to see a one-sided `difference`: `2 (z_a+z_b)**2 sd**2/difference**2`; round up.

    `sd` is the standard deviation between seeds of one configuration, measured on the user's job.
    """
    return 2 * (_z_sum(significance, power) * sd / difference) ** 2


def detectable_difference(*, sd: float, num_seeds: int, significance: float = 0.05, power: float = 0.8) -> float:
    """Q-5 the other way round: the smallest difference that `num_seeds` runs per arm show."""
    return _z_sum(significance, power) * sd * math.sqrt(2 / num_seeds)


def acceptable(loss: float, *, target_loss: float, standard_error: float, tolerance: float) -> bool:
    """A smaller model is good enough: the one-sided 95 % bound of its loss is within `tolerance` nats of the target."""
    return loss - target_loss + NormalDist().inv_cdf(0.95) * standard_error <= tolerance


def _z_sum(significance: float, power: float) -> float:
    normal = NormalDist()
    return normal.inv_cdf(1 - significance) + normal.inv_cdf(power)
