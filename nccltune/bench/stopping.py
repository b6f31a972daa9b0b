"""Ctrl-C, SIGTERM and SIGHUP during a scan: the first lets the case in flight finish, the second stops at once."""

import _thread
import contextlib
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self


class StopSignals:
    """A context that turns signals into ``requested``; outside the main thread it changes nothing."""

    def __init__(self, on_first: Callable[[], None]) -> None:
        self.requested = False
        self._on_first = on_first
        self._shielded = False
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Self:
        try:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                # Under nohup SIGHUP is ignored, and stays so.
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                    self._old[number] = signal.signal(number, self._handle)
        except ValueError:
            self._old.clear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def shield(self) -> None:
        """From here on signals change nothing: the ranks are being ended, which is short and must not stop halfway."""
        self._shielded = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._shielded:
            return
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        # Told from a thread: the signal may have cut into the very code that draws, or into the import of what it needs,
        # and that code must go on first. Without threading's locks, because it may have cut into those too.
        _thread.start_new_thread(self._tell, ())

    def _tell(self) -> None:
        with contextlib.suppress(Exception):  # the terminal may be gone; the request stands
            self._on_first()
