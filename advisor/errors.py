"""The errors advisor raises on purpose, and the exit code each one ends in.

    AdvisorError            2    the question could not be answered
    ├── UsageError          2    a flag, a setting or a combination of them
    ├── WorkloadError       2    the user's file: import, build, batch, loss, optimizer
    ├── ProfileError        2    a hardware profile, an unknown device or cluster
    ├── TraceError          2    the step could not be traced
    ├── MeasurementError    2    no such device here (running out of memory is a result, not an error)
    └── ReportError         2    a stored report or policy that can't be read

Values, not exceptions: a plan that does not fit is a `Rejection` with a reason.
"""


class AdvisorError(Exception):
    """What failed, where and what was found (`message`); what to do about it (`hint`)."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross the pipe from the child process; keyword-only arguments need this.
        return (_rebuild, (type(self), self.message, self.hint))


def _rebuild(kind: type[AdvisorError], message: str, hint: str | None) -> AdvisorError:
    return kind(message, hint=hint)


class UsageError(AdvisorError):
    """A flag, a setting or a combination of them that has no meaning."""


class WorkloadError(AdvisorError):
    """The user's file: it can't be imported, built, fed or stepped."""


class ProfileError(AdvisorError):
    """A hardware profile that is broken, or a device or cluster nobody described."""


class TraceError(AdvisorError):
    """The training step can't be traced without running it for real."""


class MeasurementError(AdvisorError):
    """There is no such device on this machine."""


class ReportError(AdvisorError):
    """A stored report or policy that can't be read."""
