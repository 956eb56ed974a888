"""Advice on learning rate and batch: what must hold for any numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.advice import critical_batch as critical
from advisor.advice.batch_layout import BatchLayout
from advisor.advice.batch_rules import capped_sqrt_factor
from advisor.advice.learning_rate import TrainingJob, advise
from advisor.advice.scaling_laws import BESIROGLU

sizes = st.integers(min_value=1, max_value=64)
layouts = st.builds(BatchLayout, micro_batch_size=sizes, num_microbatches=sizes, num_replicas=sizes)
batches = st.floats(min_value=1, max_value=1e8)
jobs = st.builds(
    TrainingJob,
    optimizer=st.sampled_from(["SGD", "AdamW", "Adam8bit", "LAMB", "Muon", "Adafactor", "Lion", ""]),
    learning_rate=st.none() | st.floats(min_value=1e-6, max_value=1),
    betas=st.sampled_from([(), (0.9, 0.95), (0.9, 0.999), (0.5, 1.0)]),
    weight_decay=st.none() | st.floats(min_value=0, max_value=1),
    is_language_model=st.booleans(),
    tokens_per_sample=st.none() | st.integers(min_value=1, max_value=10**5),
    tokens=st.none() | st.floats(min_value=1e6, max_value=1e14),
    fine_tune=st.booleans(),
    noise_scale=st.none() | st.floats(min_value=1e-2, max_value=1e8) | st.just(math.inf),
    uses_batch_norm=st.booleans(),
)


@given(jobs, layouts, layouts)
def test_advice_lies_between_keeping_and_the_linear_rule(job, old, new):
    advice = advise(job, old=old, new=new)
    k = new.global_batch_size / old.global_batch_size
    assert advice.changed == (k != 1)
    if advice.factor is not None:
        assert min(1, k) * (1 - 1e-9) <= advice.factor <= max(1, k) * (1 + 1e-9)
    if not advice.changed:
        assert advice.new_lr == advice.old_lr
    assert "nan" not in advice.sentence


@given(batches, batches, batches)
def test_the_capped_rule_undoes_itself(old, new, cap):
    there = capped_sqrt_factor(old, new_batch=new, cap=cap)
    back = capped_sqrt_factor(new, new_batch=old, cap=cap)
    assert there * back == pytest.approx(1)


@given(batches, st.floats(min_value=1, max_value=1e4), batches)
def test_speedup_times_data_cost_is_the_ratio(batch, k, bound):
    speedup = critical.speedup(batch, k=k, critical_batch=bound)
    assert speedup * critical.data_cost(batch, k=k, critical_batch=bound) == pytest.approx(k)


@given(st.floats(min_value=1e7, max_value=1e12), st.floats(min_value=1e9, max_value=1e13))
def test_tokens_to_match_a_model_of_the_same_size(parameters, tokens):
    loss = BESIROGLU.loss(parameters, tokens)
    assert BESIROGLU.tokens_to_match(parameters, target_loss=loss) == pytest.approx(tokens, rel=1e-3)
