"""What a plan means for the learning rate: the job and its plans in the terms of `advice`."""

from __future__ import annotations

from advisor.advice.batch_layout import BatchLayout
from advisor.advice.learning_rate import TrainingJob, advise
from advisor.advice.result import LearningRateAdvice
from advisor.options.base import Recipe
from advisor.search.plan import Plan
from advisor.trace.records import StepTrace


def training_job(
    trace: StepTrace, *, learning_rate: float | None, tokens: float | None, fine_tune: bool
) -> TrainingJob:
    """The job as it is traced; `learning_rate` wins over the optimizer's, `tokens` are of the whole job."""
    return TrainingJob(
        optimizer=trace.optimizer.type_name,
        learning_rate=learning_rate or trace.optimizer.learning_rate,
        betas=trace.optimizer.betas,
        weight_decay=trace.optimizer.weight_decay,
        is_language_model=trace.tokens_per_sample is not None,
        tokens_per_sample=trace.tokens_per_sample,
        tokens=tokens,
        fine_tune=fine_tune,
        uses_batch_norm=any("BatchNorm" in m.type_name and "Sync" not in m.type_name for m in trace.modules),
    )


def learning_rate(job: TrainingJob, start: Recipe, plan: Plan) -> LearningRateAdvice:
    """Advice for going from the step as it is to `plan`."""
    old = BatchLayout(micro_batch_size=start.micro_batch_size, num_microbatches=start.num_microbatches)
    new = BatchLayout(
        micro_batch_size=plan.recipe.micro_batch_size,
        num_microbatches=plan.recipe.num_microbatches,
        num_replicas=plan.mesh.data_parallel_size,
    )
    return advise(job, old=old, new=new)
