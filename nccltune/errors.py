"""Expected failures and the exit code each one has (design: 0 done .. 130 interrupted). Imports nothing.

Every message answers three things: what failed, why, and what to do. The command line prints them without a
traceback; anything that is not a :class:`NccltuneError` is a bug and keeps its traceback.
"""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_QUALITY = 3
EXIT_VALIDATION = 4
EXIT_MACHINE = 5
EXIT_TIME_LIMIT = 124
EXIT_INTERRUPTED = 130


class NccltuneError(Exception):
    """An expected failure: *what* happened, *why*, and what to *do* about it."""

    exit_code = EXIT_FAILED

    def __init__(self, what: str, why: str = "", do: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.do = do

    def lines(self) -> list[str]:
        """Return the message as one to three lines, without a leading ``Error:``."""
        return [self.what, *([f"why: {self.why}"] if self.why else []), *([f"do:  {self.do}"] if self.do else [])]

    def __str__(self) -> str:
        return "; ".join(self.lines())


class InputError(NccltuneError):
    """Wrong usage, or an input file that cannot be read as what it claims to be."""

    exit_code = EXIT_USAGE


class QualityError(NccltuneError):
    """The work finished, but its quality gate failed (noise, wrong results, nothing usable, a partial run)."""

    exit_code = EXIT_QUALITY


class ValidationError(NccltuneError):
    """Measured and predicted disagree beyond the tolerance."""

    exit_code = EXIT_VALIDATION


class MachineError(NccltuneError):
    """This machine cannot do it (no GPU, too few ranks, libnccl or torch not found)."""

    exit_code = EXIT_MACHINE


class TimeLimitError(NccltuneError):
    """A time limit stopped the work; what is done is saved."""

    exit_code = EXIT_TIME_LIMIT


class InterruptedRunError(NccltuneError):
    """The user stopped the work; what is done is saved and the message says how to resume."""

    exit_code = EXIT_INTERRUPTED


class NoBasisError(NccltuneError):
    """There is nothing to compute this number from. Raised instead of inventing one."""

    exit_code = EXIT_QUALITY
