"""How a global batch is cut into micro-batches and replicas, and what may break when it is cut differently."""

from __future__ import annotations

from dataclasses import dataclass

# Wu & He 2018 (group normalisation), abstract: at 2 per device ResNet-50 errs 10.6 % more than with GroupNorm; Goyal et
# al. 2017 keep 32 per device. Recommending another normalisation below 16 is a choice between the two.
_LEAST_BATCH_NORM_BATCH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLayout:
    """How the global batch of one optimizer step is put together."""

    micro_batch_size: int  # samples per device and micro-batch
    num_microbatches: int = 1  # gradient accumulation
    num_replicas: int = 1  # data-parallel ranks

    @property
    def global_batch_size(self) -> int:
        return self.micro_batch_size * self.num_microbatches * self.num_replicas


def loss_checks(old: BatchLayout, *, new: BatchLayout, is_language_model: bool) -> tuple[str, ...]:
    """Ways a loss loses its normalisation when the same batch is cut differently."""
    if (old.num_microbatches, old.num_replicas) == (new.num_microbatches, new.num_replicas):
        return ()
    lines = []
    if is_language_model:
        lines.append(
            "loss: divide the sum over tokens by all valid tokens of the step, over micro-batches and ranks; a mean of "
            "means weighs the tokens of short sequences more"
        )
    if new.num_microbatches > 1 and new.num_microbatches != old.num_microbatches:
        lines.append(
            f"loss: divide by the {new.num_microbatches} micro-batches once (a framework may do it already), a last "
            "incomplete window by its true count"
        )
    if new.num_replicas > 1 and new.num_replicas != old.num_replicas:
        lines.append(
            f"loss: with reduction='sum' multiply by the {new.num_replicas} replicas: gradients are averaged over them"
        )
        lines.append(
            "data: use a distributed sampler and call set_epoch(), and seed dropout and augmentation with seed + rank; "
            "without the sampler all replicas see the same data"
        )
    return tuple(lines)


def batch_norm_checks(old: BatchLayout, *, new: BatchLayout) -> tuple[str, ...]:
    """BatchNorm statistics follow the micro-batch of one device, whatever the global batch."""
    before, after = old.micro_batch_size, new.micro_batch_size
    if before == after:
        return ()
    seen = f"BatchNorm computes its statistics over {after} samples instead of {before}"
    if after < _LEAST_BATCH_NORM_BATCH:
        return (f"{seen}: use SyncBatchNorm or GroupNorm below {_LEAST_BATCH_NORM_BATCH} per device",)
    if after > before:
        return (f"{seen}: ghost batch normalisation with {before} keeps them as tuned",)
    return (f"{seen}: keep {before} per device, or check accuracy",)
