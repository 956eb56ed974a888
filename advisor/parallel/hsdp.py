"""HSDP: FSDP2 inside a shard group, replicated over several of them (torch `fully_shard` on a mesh of two axes)."""

from __future__ import annotations

from advisor.hardware.mesh import Mesh
from advisor.parallel.base import FullySharded, FullyShardPolicy
from advisor.trace.records import STATES, StepTrace


class Hsdp(FullySharded):
    """Every micro-batch reduces over the shard group; shards are all-reduced over the replicas in the last one only."""

    name = "hsdp"
    axes = ("dp_replicate", "dp_shard")
    title = "HSDP (fully_shard on two axes)"
    simplicity = 4
    sharded = STATES
    policy = FullyShardPolicy(reshard_after_forward=True)
    loop = ("model.set_requires_all_reduce(is_last)",)

    def illegal(self, trace: StepTrace, mesh: Mesh) -> str | None:
        if mesh.dp_replicate == 1 or mesh.dp_shard == 1:
            return "one replica is FSDP2 and one shard is DDP: both axes must have more than one rank"
        return super().illegal(trace, mesh)


STRATEGY = Hsdp()
