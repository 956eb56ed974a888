"""HSDP: FSDP2 inside a shard group, replicated over several of them (torch `fully_shard` on a mesh of two axes)."""

from __future__ import annotations

from advisor.hardware.mesh import Mesh
from advisor.parallel.base import FullyShardPolicy, Strategy, fully_shard, fully_shard_snippet, why_not_fully_shard
from advisor.trace.records import StepTrace


class Hsdp(Strategy):
    """Every micro-batch reduces over the shard group; shards are all-reduced over the replicas in the last one only."""

    name = "hsdp"
    axes = ("dp_replicate", "dp_shard")
    title = "HSDP (fully_shard on two axes)"
    simplicity = 4

    def illegal(self, trace: StepTrace, mesh: Mesh) -> str | None:
        if mesh.dp_replicate == 1 or mesh.dp_shard == 1:
            return "one replica is FSDP2 and one shard is DDP: both axes must have more than one rank"
        return why_not_fully_shard(trace, mesh, self.axes)

    def shard(self, trace: StepTrace, mesh: Mesh, *, reshard_after_forward: bool = True) -> StepTrace:
        if mesh.data_parallel_size == 1:
            return trace
        return fully_shard(trace, mesh, FullyShardPolicy(reshard_after_forward=reshard_after_forward))

    def snippet(self, mesh: Mesh, *, reshard_after_forward: bool = True) -> str:
        loop = ("model.set_requires_all_reduce(is_last)",)
        return fully_shard_snippet(mesh, self.axes, reshard=reshard_after_forward, loop=loop)


STRATEGY = Hsdp()
