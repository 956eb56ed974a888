"""A loaded workload to ask for traces and measurements: in this process, or in a guarded child."""

from advisor.session.base import Session

__all__ = ["Session"]
