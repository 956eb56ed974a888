"""What a storage is for. Apart from the records: a stored report names categories and holds no trace."""

from __future__ import annotations

from enum import StrEnum


class Category(StrEnum):
    """What a storage is for; MemTracker's words, plus buffers that only a cluster needs."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATION = "activation"  # lives from forward into backward
    TEMPORARY = "temporary"  # dies in the phase that made it
    INPUT = "input"
    WORKSPACE = "workspace"  # cuBLAS, taken from the caching allocator
    COMMUNICATION = "communication"  # buckets, gathered parameters, reduce inputs


STATES = frozenset({Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE})  # what training keeps
