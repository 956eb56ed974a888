import math

import pytest

from advisor.advice.batch_layout import BatchLayout
from advisor.advice.batch_rules import optimal_batch
from advisor.advice.learning_rate import TrainingJob, advise


def layout(micro, accumulation=1, replicas=1):
    return BatchLayout(micro_batch_size=micro, num_microbatches=accumulation, num_replicas=replicas)


def gpt(**changes):
    job = {
        "optimizer": "AdamW",
        "learning_rate": 1e-3,
        "betas": (0.9, 0.95),
        "weight_decay": 0.1,
        "is_language_model": True,
        "tokens_per_sample": 1024,
        "tokens": 20e9,
    }
    return TrainingJob(**(job | changes))


def test_accumulation_spread_over_devices_changes_nothing():
    advice = advise(gpt(), old=layout(4, 8), new=layout(4, 1, 8))
    assert not advice.changed
    assert (advice.old_lr, advice.new_lr, advice.factor) == (1e-3, 1e-3, 1.0)
    assert advice.warmup == "unchanged"
    assert advice.sentence.startswith("unchanged, because the global batch is unchanged (32 samples)")
    assert advice.companions == ()
    assert any("all valid tokens" in warning for warning in advice.warnings)


def test_unchanged_batch_still_warns_about_batch_norm():
    job = TrainingJob(optimizer="SGD", learning_rate=0.1, uses_batch_norm=True)
    advice = advise(job, old=layout(32), new=layout(8, 4))
    assert any("BatchNorm computes its statistics over 8 samples instead of 32" in text for text in advice.warnings)


def test_sgd_is_linear():
    job = TrainingJob(optimizer="SGD", learning_rate=0.1)
    advice = advise(job, old=layout(256), new=layout(256, 1, 32))
    assert advice.changed
    assert advice.rule == "LR-1"
    assert advice.new_lr == pytest.approx(3.2)
    assert advice.warmup == "gradual, from the old learning rate, over 5 epochs"
    assert not any("beyond it" in warning for warning in advice.warnings)


def test_sgd_beyond_the_evidence_is_held():
    job = TrainingJob(optimizer="SGD", learning_rate=0.1)
    advice = advise(job, old=layout(256), new=layout(256, 1, 128))
    assert advice.new_lr == pytest.approx(3.2)
    assert any("shown up to 8192 images" in warning for warning in advice.warnings)


def test_adamw_language_model_is_capped_at_the_optimal_batch():
    cap = optimal_batch(20e9)
    beyond = advise(gpt(), old=layout(1024), new=layout(1024, 1, 8))
    assert beyond.rule == "LR-15"
    assert beyond.new_lr == 1e-3  # 1M tokens is more than the optimal batch already
    assert "stays 0.001" in beyond.sentence
    across = advise(gpt(), old=layout(256), new=layout(256, 1, 16))
    assert across.factor == pytest.approx(math.sqrt(cap / (256 * 1024)))
    below = advise(gpt(), old=layout(16), new=layout(16, 1, 8))
    assert below.factor == pytest.approx(math.sqrt(8))


def test_range_of_the_cap_is_told():
    advice = advise(gpt(tokens=1e12), old=layout(1024), new=layout(1024, 1, 8))
    assert any("the factor is 1.54 to 1.98" in warning for warning in advice.warnings)
    assert any("fitted on 4B to 100B" in warning for warning in advice.warnings)


def test_adamw_language_model_of_unknown_length():
    advice = advise(gpt(tokens=None), old=layout(16), new=layout(16, 1, 4))
    assert advice.rule == "LR-2"
    assert advice.factor == 2
    assert any("give the tokens of the whole job" in warning for warning in advice.warnings)


def test_language_models_ignore_the_noise_scale():
    advice = advise(gpt(noise_scale=10), old=layout(16), new=layout(16, 1, 8))
    assert advice.rule == "LR-15"
    assert any("noise scale was not used" in warning for warning in advice.warnings)
    assert not any("LR-14" in line for line in advice.companions)


@pytest.mark.parametrize("optimizer, factor", [("SGD", 5.62963), ("AdamW", 2.37268), ("Adam8bit", 2.37268)])
def test_measured_noise_scale(optimizer, factor):
    job = TrainingJob(optimizer=optimizer, learning_rate=1e-3, noise_scale=4000)
    advice = advise(job, old=layout(256), new=layout(256, 1, 8))
    assert advice.rule == "LR-4"
    assert advice.factor == pytest.approx(factor, rel=1e-5)
    assert any("0.421 times as large" in line for line in advice.companions)
    assert any("the same loss needs 1.42 times the data" in warning for warning in advice.warnings)


@pytest.mark.parametrize(
    "optimizer, rule, factor",
    [
        ("Adam", "LR-2", math.sqrt(8)),
        ("RMSprop", "LR-2", math.sqrt(8)),
        ("Muon", "LR-2", math.sqrt(8)),
        ("LAMB", "LEGW", math.sqrt(8)),
        ("Adafactor", "relative step", 1.0),
        ("Lion", "", None),
    ],
)
def test_rule_by_optimizer(optimizer, rule, factor):
    advice = advise(TrainingJob(optimizer=optimizer, learning_rate=1e-3), old=layout(32), new=layout(32, 1, 8))
    assert advice.rule == rule
    assert advice.factor == (None if factor is None else pytest.approx(factor))
    assert advice.new_lr == (None if factor is None else pytest.approx(1e-3 * factor))


def test_lamb_keeps_warmup_steps():
    advice = advise(TrainingJob(optimizer="LAMB", learning_rate=6.25e-4), old=layout(512), new=layout(512, 1, 64))
    assert advice.new_lr == pytest.approx(5e-3)
    assert advice.warmup == "the same number of steps: 64 times as many epochs"


@pytest.mark.parametrize("replicas, factor", [(4, 2.0), (8, 1.0)])
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_fine_tuning_is_never_linear(optimizer, replicas, factor):
    advice = advise(gpt(optimizer=optimizer, fine_tune=True), old=layout(8), new=layout(8, 1, replicas))
    assert advice.factor == factor
    assert any("up to 5e-05" in warning for warning in advice.warnings)


def test_unknown_learning_rate_gives_a_factor():
    advice = advise(TrainingJob(optimizer="Adam"), old=layout(32), new=layout(32, 1, 4))
    assert advice.new_lr is None
    assert "multiply the learning rate by 2" in advice.sentence


def test_companions():
    advice = advise(gpt(), old=layout(16), new=layout(16, 1, 8))
    text = "\n".join(advice.companions)
    assert "beta2 to 0.66342" in text
    assert "0.1 -> 0.283" in text
    assert "0.9999 -> 0.9992003" in text
    assert "0.125 times the steps" in text
    assert advice.warmup == "the same number of steps, at least 40 steps (LR-10)"


def test_a_smaller_batch_keeps_warmup_samples_and_wastes_no_data():
    advice = advise(TrainingJob(optimizer="Adam", learning_rate=1e-3), old=layout(128), new=layout(32))
    assert advice.factor == 0.5
    assert advice.warmup == "the same number of samples"
    assert advice.warnings == ()


def test_feasibility_in_data_and_steps():
    """0.5M tokens to 8M tokens at D = 20 billion: critical batch 3.05M to 5.54M."""
    advice = advise(gpt(), old=layout(512), new=layout(512, 1, 16))
    (text,) = (warning for warning in advice.warnings if "LR-13" in warning)
    assert "needs 2.3 to 3.2 times the data" in text
    assert "2384 steps are left, 5477 to 7624 are needed" in text
    assert "beyond 2.36 to 3.31 times the batch more than 20 % is wasted" in text


def test_unknown_critical_batch_is_said():
    advice = advise(TrainingJob(optimizer="Adam", learning_rate=1e-3), old=layout(32), new=layout(32, 1, 4))
    assert any("critical batch is not known" in warning for warning in advice.warnings)
