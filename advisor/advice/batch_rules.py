"""How hyper-parameters follow the batch: rules LR-1 to LR-15, one function each.

Symbols: `k` = new batch / old batch; `B` global batch per optimizer step in one unit throughout (samples or tokens);
`N` parameters, `D` tokens of the whole job, `C` training FLOPs. Each docstring gives the source and where it holds.
"""

from __future__ import annotations

import math

from advisor.advice.critical_batch import speedup
from advisor.errors import UsageError

# LR-1: Goyal et al. 2017, arXiv:1706.02677, abstract: no loss of accuracy up to this many images (ResNet-50).
LINEAR_RULE_LIMIT = 8192
# LR-1: same paper, gradual warm-up from the old learning rate.
LINEAR_RULE_WARMUP_EPOCHS = 5
# LR-11, LR-15: token counts of the Step Law runs (arXiv:2503.04715).
FITTED_TOKENS = (4e9, 100e9)
# Power Lines batches and Step Law runs count sequences of this many tokens.
_SEQUENCE_TOKENS = 2048


def linear_learning_rate(learning_rate: float, *, k: float) -> float:
    """LR-1. SGD, with or without momentum: `lr' = k lr`.

    Source: Goyal et al. 2017, arXiv:1706.02677. Holds up to 8,192 images (ImageNet, ResNet-50, 90 epochs) with a
    gradual warm-up over 5 epochs from the old rate, and for batches well below the gradient noise scale.
    """
    return learning_rate * k


def sqrt_learning_rate(learning_rate: float, *, k: float) -> float:
    """LR-2. Adam, AdamW, RMSProp, LAMB: `lr' = sqrt(k) lr`.

    Source: Malladi et al. 2022, arXiv:2205.10287; 1,911 public AdamW runs of Step Law (arXiv:2503.04715), re-analysed.
    Holds while the new batch is at most the optimal batch (language models) or the critical batch (other models).
    """
    return learning_rate * math.sqrt(k)


def adam_sde(
    learning_rate: float, *, beta1: float, beta2: float, eps: float, k: float
) -> tuple[float, float, float, float]:
    """LR-3. Adam family, the full rule: `sqrt(k) lr`, `1-k(1-b1)`, `1-k(1-b2)`, `eps/sqrt(k)`.

    Source: Malladi et al. 2022, arXiv:2205.10287. Holds in the noise-dominated phase and only for `k < 1/(1-beta)`
    (k < 10 at beta1 = 0.9). Raises `UsageError` beyond.
    """
    limit = 1 / (1 - min(beta1, beta2))
    if k >= limit:
        raise UsageError(
            f"the Adam SDE rule (LR-3) has no solution for a batch {k:g} times as large: betas {beta1:g}, {beta2:g} "
            f"allow less than {limit:g} times",
            hint="scale the learning rate by the square root alone (LR-2)",
        )
    return learning_rate * math.sqrt(k), 1 - k * (1 - beta1), 1 - k * (1 - beta2), eps / math.sqrt(k)


def gain(batch: float, *, k: float, noise_scale: float) -> float:
    """LR-4. Factor on the SGD learning rate, `(1+Bn/B)/(1+Bn/(kB))`; for Adam its square root.

    Source: McCandlish et al. 2018, arXiv:1812.06162, eq. 2.6; the same as AdaScale's gain; exponent 1/2 for Adam as in
    AdaptDL. Holds where the noise scale `Bn` was measured, in the unit of `B`; it is not reliable for AdamW language
    models (Merrill 2025, arXiv:2505.23971). Tends to LR-1 for `B << Bn`, to 1 for `B >> Bn`.
    """
    if math.isinf(noise_scale):
        return k
    return speedup(batch, k=k, critical_batch=noise_scale)


def surge(batch: float, *, noise_scale: float) -> float:
    """LR-5. Adam: optimal learning rate as a share of its maximum, `2/(sqrt(Bn/B)+sqrt(B/Bn))`.

    Source: Li et al. 2024 (NeurIPS, "Surge phenomenon"). The shape only: it peaks at `B = Bn`, and `Bn` of Adam can
    only be fitted.
    """
    return 2 / (math.sqrt(noise_scale / batch) + math.sqrt(batch / noise_scale))


def half_life_beta2(beta2: float, *, k: float) -> float:
    """LR-6. Adam with the learning rate kept: `b2' = b2**k` keeps the half-life of the second moment in tokens.

    Source: Marek et al. 2025, arXiv:2507.07101. Holds for small and medium batches.
    """
    return float(beta2**k)


def ema_decay(rho: float, *, k: float) -> float:
    """LR-7. Exponential average of the model: `rho' = rho**k` keeps its horizon in samples.

    Source: Busbridge et al. 2023, arXiv:2307.13813 (the scaling); the exponent follows from the constant horizon.
    """
    return float(rho**k)


def timescale_weight_decay(weight_decay: float, *, k: float, learning_rate_factor: float) -> float:
    """LR-8. AdamW: `wd' = wd k/(lr'/lr)` keeps the timescale `tau = B/(lr wd D)`.

    Source: Wang & Aitchison 2024, arXiv:2405.13698; Power Lines, arXiv:2505.13738. Decoupled decay only.
    """
    return weight_decay * k / learning_rate_factor


def optimal_timescale(tokens_per_parameter: float) -> float:
    """LR-9. AdamW: `tau_opt = 1.084 (D/N)**-0.527`.

    Source: Bergsma et al. 2025 (Power Lines), arXiv:2505.13738. Fitted on muP models of 111M to 3.3B parameters.
    """
    return float(1.084 * tokens_per_parameter**-0.527)


def optimal_weight_decay(batch_tokens: float, *, learning_rate: float, tokens: float, parameters: float) -> float:
    """LR-9. AdamW: the weight decay that gives `tau_opt`, `wd = B/(lr D tau_opt)`; source as `optimal_timescale`."""
    return batch_tokens / (learning_rate * tokens * optimal_timescale(tokens / parameters))


def least_warmup_steps(beta2: float) -> float:
    """LR-10. Adam: linear warm-up of at least `2/(1-b2)` steps.

    Source: Ma & Yarats 2019, arXiv:1910.04209. A lower bound, not a tuned value.
    """
    return 2 / (1 - beta2)


def step_law(parameters: float, tokens: float) -> tuple[float, float]:
    """LR-11. Language models: `lr = 1.79 N**-0.713 D**0.307` and batch `0.58 D**0.571` in tokens.

    Source: Step Law (Li et al. 2025), arXiv:2503.04715; `N` without embeddings. Fitted on 215M to 1.07B parameters,
    4 to 100 billion tokens, one architecture family, fixed batch, cosine decay.
    """
    return 1.79 * parameters**-0.713 * tokens**0.307, 0.58 * tokens**0.571


def deepseek_law(flops: float) -> tuple[float, float]:
    """LR-12. Language models: `lr = 0.3118 C**-0.1250` and batch `0.2920 C**0.3271` in tokens.

    Source: DeepSeek LLM, arXiv:2401.02954, eq. 1; `C` = non-embedding FLOPs per token x tokens. Fitted on 1e17 to 2e19
    FLOPs, checked at 1e20.
    """
    return 0.3118 * flops**-0.1250, 0.2920 * flops**0.3271


def power_lines_batch(tokens: float) -> float:
    """Optimal batch of a language model in tokens: `0.0306 D**0.383` sequences of 2,048.

    Source: Bergsma et al. 2025 (Power Lines), arXiv:2505.13738: the exponent; the coefficient is quoted from memory and
    agrees with Step Law within 5 % at 50 billion tokens.
    """
    return float(0.0306 * tokens**0.383 * _SEQUENCE_TOKENS)


def optimal_batch_range(tokens: float) -> tuple[float, float]:
    """Optimal batch of a language model trained on `tokens`, low and high, in tokens: Step Law and Power Lines.

    They cross near 50 billion tokens and disagree far from there: at 1 trillion, 2.5M against 4.1M.
    """
    _, step_law_batch = step_law(1.0, tokens)
    low, high = sorted((step_law_batch, power_lines_batch(tokens)))
    return low, high


def optimal_batch(tokens: float) -> float:
    """Optimal batch of a language model in tokens: the geometric mean of `optimal_batch_range`."""
    low, high = optimal_batch_range(tokens)
    return math.sqrt(low * high)


def steps_per_epoch(num_samples: int, *, num_replicas: int, micro_batch_size: int) -> int:
    """LR-13. Optimizer steps of one epoch under `DistributedSampler(drop_last=False)`, which pads the last shard."""
    return math.ceil(math.ceil(num_samples / num_replicas) / micro_batch_size)


def steps_to_same_loss(num_steps: float, *, batch: float, k: float, critical_batch: float) -> tuple[float, float]:
    """LR-13. (steps left at the same number of epochs, steps needed for the same loss) at `k` times the batch.

    Source: follows from CB-2 (McCandlish et al. 2018, arXiv:1812.06162), `S = S_min (1 + Bc/B)`: the gain of CB-3.
    """
    return num_steps / k, num_steps / speedup(batch, k=k, critical_batch=critical_batch)


def clip_norm_ratio(batch: float, *, k: float, noise_scale: float) -> float:
    """LR-14. Root-mean-square gradient norm at the new batch over that at the old: `sqrt((1+Bn/(kB))/(1+Bn/B))`.

    Source: follows from `E|g_B|^2 = |G|^2 (1+Bn/B)` (McCandlish et al. 2018). A fixed clipping threshold thus clips
    less at a larger batch.
    """
    return 1 / math.sqrt(gain(batch, k=k, noise_scale=noise_scale))


def capped_sqrt_factor(batch: float, *, new_batch: float, cap: float) -> float:
    """LR-15. AdamW language models: factor `sqrt(min(B', B_opt)/min(B, B_opt))` on the learning rate, either way.

    Source: 1,911 public runs of Step Law (arXiv:2503.04715), re-analysed: growing the batch 4x up to the optimal one
    costs 0.0121 nats at the kept rate, 0.0014 by the square root, 0.0029 linearly; growing it 4x beyond costs 0.0009,
    0.0238 and 0.0758. Holds for pre-training of 215M to 1.07B parameters on 4 to 100 billion tokens.
    """
    return math.sqrt(min(new_batch, cap) / min(batch, cap))
