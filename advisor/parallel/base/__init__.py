"""The contract of a parallel strategy, and what those that call `fully_shard` share. Strategies import this alone."""

from advisor.parallel.base.fully_sharded import FullySharded, fully_shard
from advisor.parallel.base.hooks import FullyShardPolicy
from advisor.parallel.base.strategy import Strategy, data_parallel_notes, why_not_data_parallel

__all__ = [
    "FullyShardPolicy",
    "FullySharded",
    "Strategy",
    "data_parallel_notes",
    "fully_shard",
    "why_not_data_parallel",
]
