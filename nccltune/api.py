"""The Python twin of every command: ``nccltune.scan(...)``, ``nccltune.predict(...)``. Thin: each calls one room.

Imports stay inside the functions, so that using one command does not load what another needs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nccltune.bench.report import ScanResult
    from nccltune.bench.request import ScanRequest
    from nccltune.bench.scan import Event


def scan(
    request: ScanRequest | None = None,
    *,
    output: str | Path | None = None,
    resume: str | Path | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> ScanResult:
    """Measure a plan into a run folder and fit it; ``resume`` goes on with an existing run instead.

    Raises InputError or MachineError before anything runs. Failed cases are records of the run, not exceptions.
    """
    from nccltune.bench import report

    return report.scan(
        request, output=Path(output) if output else None, resume=Path(resume) if resume else None, on_event=on_event
    )


def plan_scan(request: ScanRequest) -> dict[str, Any]:
    """What ``scan`` would measure: settings, sizes, cases, seconds, and what was dropped with the reason."""
    from nccltune.bench.request import prepare, request_facts

    return request_facts(prepare(request))
