"""The user's model file, turned into a `Workload`. The only room that runs user code at import."""

from advisor.workload.spec import Execution, Guess, Workload, WorkloadDescription

__all__ = ["Execution", "Guess", "Workload", "WorkloadDescription"]
