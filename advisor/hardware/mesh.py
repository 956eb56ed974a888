"""`Mesh`: named axes and their degrees, and which network level a group along an axis crosses."""

from __future__ import annotations

from dataclasses import dataclass

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Parallel degrees, outermost axis first (torchtitan's order); their product is the world size."""

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1

    @property
    def world_size(self) -> int:
        return self.pp * self.dp_replicate * self.dp_shard * self.cp * self.tp

    @property
    def data_parallel_size(self) -> int:
        return self.dp_replicate * self.dp_shard

    def degree(self, axis: str) -> int:
        return int(getattr(self, axis))

    def stride(self, axis: str) -> int:
        """Distance in ranks between neighbours of a group along `axis`."""
        stride = 1
        for inner in AXES[AXES.index(axis) + 1 :]:
            stride *= self.degree(inner)
        return stride

    def ranks_per_node(self, axis: str, devices_per_node: int) -> int:
        """How many members of a group along `axis` share one node (`specs`: n * stride <= G stays inside)."""
        return max(1, min(self.degree(axis), devices_per_node // self.stride(axis)))
