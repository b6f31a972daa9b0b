"""Ctrl-C and SIGTERM during a scan: the first lets the case in flight finish, the second stops at once."""

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self


class StopSignals:
    """A context that turns SIGINT and SIGTERM into ``requested``; outside the main thread it changes nothing."""

    def __init__(self, on_first: Callable[[], None]) -> None:
        self.requested = False
        self._on_first = on_first
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Self:
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._handle)
        except ValueError:
            self._old.clear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self._on_first()
