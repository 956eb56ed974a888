"""ZeRO-1: optimizer state in shards; parameters gathered and gradients reduced once a step (torch `fully_shard`)."""

from __future__ import annotations

from advisor.hardware.mesh import Mesh
from advisor.parallel.base import FullyShardPolicy, Strategy, fully_shard, fully_shard_snippet, why_not_fully_shard
from advisor.trace.records import StepTrace

_POLICY = FullyShardPolicy(reshard_after_forward=False, keep_gathered=True, reduce_once=True)
_LOOP = ("model.set_requires_gradient_sync(is_last)", "model.set_reshard_after_backward(is_last)")


class Zero1(Strategy):
    """Unsharded gradients accumulate over the micro-batches. One reduce-scatter and one all-gather of the model a step.

    With a single micro-batch this is FSDP2 without resharding: gradients are sharded as soon as a block has them all.
    """

    name = "zero1"
    axes = ("dp_shard",)
    title = "ZeRO-1 (fully_shard)"
    simplicity = 2

    def illegal(self, trace: StepTrace, mesh: Mesh) -> str | None:
        return why_not_fully_shard(trace, mesh, self.axes)

    def shard(self, trace: StepTrace, mesh: Mesh, *, reshard_after_forward: bool = True) -> StepTrace:
        """Parameters are never resharded within a step, whatever `reshard_after_forward` says."""
        return trace if mesh.data_parallel_size == 1 else fully_shard(trace, mesh, _POLICY)

    def snippet(self, mesh: Mesh, *, reshard_after_forward: bool = True) -> str:
        return fully_shard_snippet(mesh, self.axes, reshard=False, loop=_LOOP)


STRATEGY = Zero1()
