"""ZeRO-2: gradients and optimizer state in shards; parameters gathered once a step (torch `fully_shard`)."""

from __future__ import annotations

from advisor.parallel.base import FullySharded, FullyShardPolicy
from advisor.trace.records import Category


class Zero2(FullySharded):
    """Every micro-batch reduces its gradients; parameters stay gathered from the first forward to the last backward.

    Outside the step parameters are in shards too, which plain ZeRO-2 does not do.
    """

    name = "zero2"
    axes = ("dp_shard",)
    title = "ZeRO-2 (fully_shard)"
    simplicity = 3
    sharded = frozenset({Category.GRADIENT, Category.OPTIMIZER_STATE})
    policy = FullyShardPolicy(reshard_after_forward=False, keep_gathered=True)
    loop = ("model.set_reshard_after_backward(is_last)",)


STRATEGY = Zero2()
