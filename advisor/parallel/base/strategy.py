"""The contract of a parallel strategy, and what every strategy of the data axis asks and says."""

from __future__ import annotations

from typing import Protocol

from advisor.hardware.mesh import AXES, Mesh
from advisor.trace.records import Category, StepTrace


class Strategy(Protocol):
    """One file in this folder that defines `STRATEGY`."""

    name: str  # "ddp", the file's name
    axes: tuple[str, ...]  # mesh axes it uses: ("dp_replicate",), ("dp_shard",), ("dp_replicate", "dp_shard")
    title: str  # "DistributedDataParallel"
    simplicity: int  # ties inside our error band go to the lower one
    sharded: frozenset[Category]  # which of parameters, gradients and optimizer states are in shards between steps

    @property
    def reshards(self) -> bool:
        """Whether `reshard_after_forward` is a choice."""
        ...

    def illegal(self, trace: StepTrace, mesh: Mesh) -> str | None:
        """Why this mesh can't be used for this workload, or None."""
        ...

    def shard(self, trace: StepTrace, mesh: Mesh, *, reshard_after_forward: bool = True) -> StepTrace:
        """The step as the busiest rank runs it: storages resized, communication buffers and collectives put in.

        `trace` already has the rank's own micro-batch and number of micro-batches. A mesh of one is the identity.
        """
        ...

    def snippet(self, mesh: Mesh, *, reshard_after_forward: bool = True, blocks: str = "blocks") -> str:
        """The code to paste; `blocks`: expression of the repeated blocks."""
        ...


def why_not_data_parallel(trace: StepTrace, mesh: Mesh, axes: tuple[str, ...]) -> str | None:
    """Reasons that hold for each strategy of the data axis."""
    others = [axis for axis in AXES if axis not in axes and mesh.degree(axis) > 1]
    if others:
        return f"it uses {' and '.join(axes)} only, and the mesh has {', '.join(others)}"
    has_gradients = any(record.category is Category.GRADIENT for record in trace.storages)
    if trace.num_trainable_parameters and not has_gradients:
        return "the optimizer steps inside backward, before a gradient is reduced over the ranks"
    return None


def data_parallel_notes(trace: StepTrace) -> tuple[str, ...]:
    """What changes for the optimisation when the batch is spread over ranks."""
    norms = {m.type_name for m in trace.modules if "BatchNorm" in m.type_name and m.type_name != "SyncBatchNorm"}
    if not norms:
        return ()
    return (f"{', '.join(sorted(norms))}: each rank takes the statistics of its own micro-batch",)
