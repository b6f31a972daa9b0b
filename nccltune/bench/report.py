"""A whole scan: prepare, walk, fit. What the scan command and its Python twin share."""

import datetime
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nccltune.bench.options import Event, Outcome
from nccltune.bench.request import Prepared, ScanRequest, check_resumable, execute, prepare, resume_request
from nccltune.costmodel.run_fit import fit_run
from nccltune.errors import InputError, NoBasisError, QualityError
from nccltune.registry import load_model
from nccltune.schemas.fit import Fit
from nccltune.schemas.measurement import Measurement
from nccltune.store import Run


@dataclass(frozen=True)
class ScanResult:
    """What a scan left behind."""

    run: Run
    outcome: Outcome
    fit: Fit | None
    no_fit_reason: str
    counts: dict[str, int]
    """Cases by status."""
    notes: list[str]

    @property
    def quality_problem(self) -> str:
        """Why the quality gate fails, or empty: nothing usable, wrong sums, or failed cases of the base itself."""
        if not self.counts.get("ok"):
            return "no case gave a time"
        if self.fit is None:
            return f"no cost model could be fitted: {self.no_fit_reason}"
        bad = [
            m for m in self.run.measurements() if m.setting.name == "base" and m.status not in ("ok", "not_in_force")
        ]
        if bad:
            return f"the base setting has {len(bad)} case(s) without a time ({bad[0].status} at {bad[0].size_bytes} B)"
        return ""


def scan(
    request: ScanRequest | None, *, output: Path | None, resume: Path | None, on_event: Callable[[Event], None] | None
) -> ScanResult:
    """Measure into a new run, or go on with an old one, then fit what is there."""
    if resume is not None:
        run = Run.load(resume)
        prepared = prepare(resume_request(run, request))
        check_resumable(prepared, run)
    elif request is None:
        raise InputError("nothing to scan", "neither a request nor a run to resume was given", "give one of them")
    else:
        prepared = prepare(request)
        run = Run.create(output or default_folder(), prepared.manifest())
    outcome = execute(prepared, run, on_event)
    fit, reason = _fit(run, prepared)
    counts = Counter(m.status for m in run.measurements() if not m.repeat)
    return ScanResult(run, outcome, fit, reason, {str(k): n for k, n in counts.items()}, prepared.notes)


def default_folder() -> Path:
    """``runs/<UTC time>`` in the working folder; a number is added when it exists."""
    stem = f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}"
    path, number = Path("runs") / stem, 1
    while path.exists():
        number += 1
        path = Path("runs") / f"{stem}-{number}"
    return path


def failures(measurements: list[Measurement]) -> list[Measurement]:
    """Cases without a time that were meant to have one, first of each setting and status."""
    seen: set[tuple[str, str]] = set()
    result = []
    for m in measurements:
        if m.status in ("ok", "not_in_force", "skipped") or (m.setting.id, m.status) in seen:
            continue
        seen.add((m.setting.id, m.status))
        result.append(m)
    return result


def _fit(run: Run, prepared: Prepared) -> tuple[Fit | None, str]:
    model = prepared.request.model or (load_model(run.manifest.model) if run.manifest.model else None)
    try:
        fit = fit_run(run, model=model, timing=None)
    except (NoBasisError, QualityError) as error:
        return None, error.what
    run.save_fit(fit)
    return fit, ""
