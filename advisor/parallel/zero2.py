"""ZeRO-2: gradients and optimizer state in shards; parameters gathered once a step (torch `fully_shard`)."""

from __future__ import annotations

from advisor.hardware.mesh import Mesh
from advisor.parallel.base import FullyShardPolicy, Strategy, fully_shard, fully_shard_snippet, why_not_fully_shard
from advisor.trace.records import StepTrace

_POLICY = FullyShardPolicy(reshard_after_forward=False, keep_gathered=True)
_LOOP = ("model.set_reshard_after_backward(is_last)",)


class Zero2(Strategy):
    """Every micro-batch reduces its gradients; parameters stay gathered from the first forward to the last backward.

    Outside the step parameters are in shards too, which plain ZeRO-2 does not do.
    """

    name = "zero2"
    axes = ("dp_shard",)
    title = "ZeRO-2 (fully_shard)"
    simplicity = 3

    def illegal(self, trace: StepTrace, mesh: Mesh) -> str | None:
        return why_not_fully_shard(trace, mesh, self.axes)

    def shard(self, trace: StepTrace, mesh: Mesh, *, reshard_after_forward: bool = True) -> StepTrace:
        """Parameters are never resharded within a step, whatever `reshard_after_forward` says."""
        return trace if mesh.data_parallel_size == 1 else fully_shard(trace, mesh, _POLICY)

    def snippet(self, mesh: Mesh, *, reshard_after_forward: bool = True) -> str:
        return fully_shard_snippet(mesh, self.axes, reshard=False, loop=_LOOP)


STRATEGY = Zero2()
