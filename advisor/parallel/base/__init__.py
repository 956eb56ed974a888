"""The contract of a parallel strategy, and what those that call `fully_shard` share. Strategies import this alone."""

from advisor.parallel.base.fully_sharded import fully_shard, fully_shard_snippet, why_not_fully_shard
from advisor.parallel.base.hooks import FullyShardPolicy
from advisor.parallel.base.strategy import Strategy, data_parallel_notes, why_not_data_parallel

__all__ = [
    "FullyShardPolicy",
    "Strategy",
    "data_parallel_notes",
    "fully_shard",
    "fully_shard_snippet",
    "why_not_data_parallel",
    "why_not_fully_shard",
]
