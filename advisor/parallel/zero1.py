"""ZeRO-1: optimizer state in shards; parameters gathered and gradients reduced once a step (torch `fully_shard`)."""

from __future__ import annotations

from advisor.parallel.base import FullySharded, FullyShardPolicy
from advisor.trace.records import Category


class Zero1(FullySharded):
    """Unsharded gradients accumulate over the micro-batches. One reduce-scatter and one all-gather of the model a step.

    With a single micro-batch this is FSDP2 without resharding: gradients are sharded as soon as a block has them all.
    Parameters are never resharded within a step.
    """

    name = "zero1"
    axes = ("dp_shard",)
    title = "ZeRO-1 (fully_shard)"
    simplicity = 2
    sharded = frozenset({Category.OPTIMIZER_STATE})
    policy = FullyShardPolicy(reshard_after_forward=False, keep_gathered=True, reduce_once=True)
    loop = ("model.set_requires_gradient_sync(is_last)", "model.set_reshard_after_backward(is_last)")


STRATEGY = Zero1()
