"""FSDP2: parameters, gradients and optimizer state in shards, gathered block by block (torch `fully_shard`)."""

from __future__ import annotations

from advisor.hardware.mesh import Mesh
from advisor.parallel.base import FullyShardPolicy, Strategy, fully_shard, fully_shard_snippet, why_not_fully_shard
from advisor.trace.records import StepTrace


class Fsdp2(Strategy):
    """Every micro-batch reduces its gradients: unsharded ones, the size of the model, are never kept."""

    name = "fsdp2"
    axes = ("dp_shard",)
    title = "FSDP2 (fully_shard)"
    simplicity = 1

    def illegal(self, trace: StepTrace, mesh: Mesh) -> str | None:
        return why_not_fully_shard(trace, mesh, self.axes)

    def shard(self, trace: StepTrace, mesh: Mesh, *, reshard_after_forward: bool = True) -> StepTrace:
        if mesh.data_parallel_size == 1:
            return trace
        return fully_shard(trace, mesh, FullyShardPolicy(reshard_after_forward=reshard_after_forward))

    def snippet(self, mesh: Mesh, *, reshard_after_forward: bool = True) -> str:
        return fully_shard_snippet(mesh, self.axes, reshard=reshard_after_forward)


STRATEGY = Fsdp2()
