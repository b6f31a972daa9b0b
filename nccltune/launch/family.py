"""A process that was started here, all its descendants, and what stayed in its process group: find them, end them for certain."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

_POLL_S = 0.1
_FORCED_S = 10.0  # a killed process is gone at once, unless it waits inside the driver


class Family:
    """Leader of a process group with its descendants (those that left the group included) and its group.

    Make it while the leader is known to live: psutil keeps its start time, so that its number, once another process has it, is not hit.
    """

    def __init__(self, pid: int) -> None:
        import psutil

        self.pid = pid
        self._leader: psutil.Process | None = None
        with contextlib.suppress(psutil.Error):
            self._leader = psutil.Process(pid)

    def members(self) -> list["psutil.Process"]:
        """Return all of them that there are now."""
        import psutil

        found: dict[int, psutil.Process] = {}
        if self._leader is not None and self._leader.is_running():
            with contextlib.suppress(psutil.Error):
                found = {p.pid: p for p in (self._leader, *self._leader.children(recursive=True))}
        # A leader that has died is nobody's parent any more, but the group keeps its number.
        for candidate in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if candidate.pid != self.pid and os.getpgid(candidate.pid) == self.pid:
                    found.setdefault(candidate.pid, candidate)
        return list(found.values())

    def end(self, polite_s: float) -> tuple[int, bool]:
        """End them politely, and by force after ``polite_s`` seconds. Returns how many are left, and whether force was needed."""
        family = self.members()
        _signal(family, signal.SIGTERM)
        if wait_for(lambda: not any(map(_is_active, family)), polite_s) and not any(map(_is_active, self.members())):
            return 0, False
        family += self.members()  # with what was started meanwhile
        _signal(family, signal.SIGKILL)
        wait_for(lambda: not any(map(_is_active, family)), _FORCED_S)
        return len({p.pid for p in family if _is_active(p)}), True


def wait_for(condition: Callable[[], bool], limit_s: float) -> bool:
    """Wait until ``condition`` holds; False after ``limit_s`` seconds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _is_active(process: "psutil.Process") -> bool:
    """Whether it still does anything; one that only waits to be reaped does not."""
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _signal(family: Sequence["psutil.Process"], number: int) -> None:
    import psutil

    for member in family:
        with contextlib.suppress(psutil.Error):
            member.send_signal(number)
