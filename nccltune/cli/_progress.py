"""Draws a scan's events on stderr: one live line on a terminal, one plain line every few seconds elsewhere."""

import statistics
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from nccltune.methods import NCCL
from nccltune.units import format_duration, format_us

if TYPE_CHECKING:
    from nccltune.bench.options import Event

_PLAIN_EVERY_S = 5.0


class ScanProgress:
    """A context that draws events; ``draw`` is the callback."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Progress | None = None
        self._last_plain = 0.0
        self._num_failed = 0
        self._first: tuple[float, int] | None = None
        if console.is_terminal and not console.quiet:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[eta]}"),
                TimeElapsedColumn(),
            )
            self._live = Progress(*columns, console=console, transient=True)
            self._task = self._live.add_task("scan", total=None, eta="")

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def draw(self, event: "Event") -> None:
        """Draw one event; where the terminal is gone (a lost connection), the scan goes on without."""
        try:
            self._draw(event)
        except OSError:
            self._console.quiet, self._live = True, None

    def _draw(self, event: "Event") -> None:
        if event.kind in ("note", "restart"):
            self._console.print(event.text, markup=False, style="dim")
            return
        if event.kind != "case":
            return
        m = event.measurement
        # A method beside NCCL that a machine does not have is no failure: a note said so.
        if m is not None and m.status not in ("ok", "not_in_force") and m.method == NCCL:
            self._num_failed += 1
        time_text = (
            f" {format_us(statistics.median(m.samples_us))} us"
            if m is not None and m.samples_us
            else f" {m.status}"
            if m
            else ""
        )
        text, eta = f"{event.text}{time_text}", self._eta(event)
        failed = f", {self._num_failed} failed" if self._num_failed else ""
        if self._live:
            self._live.update(
                self._task, total=event.num_total, completed=event.num_done, description=text[:60], eta=eta + failed
            )
        elif time.monotonic() - self._last_plain >= _PLAIN_EVERY_S or event.num_done == event.num_total:
            self._last_plain = time.monotonic()
            self._console.print(f"[{event.num_done}/{event.num_total}] {text}, {eta}{failed}", markup=False)

    def _eta(self, event: "Event") -> str:
        """Rest of the time, from the pace since the first case (start-up and resumed cases left out)."""
        if self._first is None:
            self._first = (event.elapsed_s, event.num_done)
            return "ETA ..."
        seconds, cases = event.elapsed_s - self._first[0], event.num_done - self._first[1]
        rest = event.num_total - event.num_done
        return (
            f"ETA {format_duration(rest * seconds / cases)}"
            if cases > 0 and rest > 0
            else "ETA 0.0 s"
            if rest <= 0
            else "ETA ..."
        )
