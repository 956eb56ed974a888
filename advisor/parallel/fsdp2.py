"""FSDP2: parameters, gradients and optimizer state in shards, gathered block by block (torch `fully_shard`)."""

from __future__ import annotations

from advisor.parallel.base import FullySharded, FullyShardPolicy
from advisor.trace.records import STATES


class Fsdp2(FullySharded):
    """Every micro-batch reduces its gradients: unsharded ones, the size of the model, are never kept."""

    name = "fsdp2"
    axes = ("dp_shard",)
    title = "FSDP2 (fully_shard)"
    simplicity = 1
    sharded = STATES
    policy = FullyShardPolicy(reshard_after_forward=True)


STRATEGY = Fsdp2()
