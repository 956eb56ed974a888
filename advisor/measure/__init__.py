"""What a real run takes on this machine: the stopwatch, never a guess. `result` and `spread` import no torch."""

from advisor.measure.result import Measurement, Outcome

__all__ = ["Measurement", "Outcome"]
