"""The Python twin of every command: ``nccltune.scan(...)``, ``nccltune.predict(...)``. Thin: each calls one room.

Imports stay inside the functions, so that using one command does not load what another needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from nccltune.calibration import Request as Calibration
    from nccltune.schemas.prediction import Prediction
    from nccltune.schemas.profile import Profile
    from nccltune.emit.emission import Emitted
    from nccltune.emit.lint import Report
    from nccltune.schemas.fit import Fit
    from nccltune.bench.report import ScanResult
    from nccltune.bench.request import ScanRequest
    from nccltune.bench.options import Event


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


def fit(run: str | Path, *, model: str | None = None, timing: str | None = None) -> Fit:
    """Fit a run folder, write ``fit.json`` into it and return the fit; ``model`` is the scan's where it is left out.

    Raises InputError for what cannot be read, QualityError when nothing in the run is usable.
    """
    from nccltune.costmodel.run_fit import fit_folder

    return fit_folder(Path(run), model=model, timing=timing)


def emit(
    run: str | Path | None = None, *, output: str | Path | None = None, model: str | None = None, **options: Any
) -> Emitted:
    """Write the settings worth exporting; ``options`` are the fields of :class:`nccltune.emit.request.Options`.

    Raises InputError for what cannot be done, QualityError for what should not be done without ``force=True``.
    """
    from nccltune.emit import emission
    from nccltune.emit.request import Options

    return emission.emit(run, Options(**options), output=str(output) if output else None, model=model)


def check(file: str | Path, *, format: str = "auto", nccl_version: str | None = None, pid: int | None = None) -> Report:
    """Lint an env file as its reader would take it; ``pid`` compares with a running process.

    Raises InputError for a file or process that cannot be read.
    """
    from nccltune.emit.grammar import parse_version
    from nccltune.emit.lint import check_file

    return check_file(str(file), format, parse_version(nccl_version) if nccl_version else None, pid)


def predict(
    draft_tokens: Sequence[int],
    *,
    batch: Sequence[int] = (1,),
    model: str | None = None,
    drafter: str | None = None,
    topology: str | None = None,
    run: str | Path | None = None,
    profile: str | None = None,
    setting: str | None = None,
    ranks: int | None = None,
    quant: str | None = None,
    context: int | None = None,
    accept_length: float | None = None,
    accept_rates: Sequence[float] | None = None,
    accept_kind: Literal["auto", "survival", "conditional"] = "auto",
    accept_log: str | Path | None = None,
    accept_steps: int | None = None,
    explain: bool = False,
) -> Prediction:
    """Predict verify time, cycle, tokens/s and the best draft-token count; without a run from a shipped reference.

    Raises InputError for what does not fit together or is impossible.
    """
    from nccltune.costmodel import prediction
    from nccltune.costmodel.acceptance_input import resolve_acceptance
    from nccltune.costmodel.basis import Question

    acceptance = resolve_acceptance(
        accept_length=accept_length, accept_rates=accept_rates, accept_kind=accept_kind,
        accept_log=Path(accept_log) if accept_log else None, accept_steps=accept_steps, draft_tokens=draft_tokens,
    )  # fmt: skip
    question = Question(model, drafter, topology, Path(run) if run else None, profile, setting, ranks, quant, context)
    return prediction.predict(question, draft_tokens, batch, acceptance, explain=explain)


def calibrate(request: Calibration) -> Profile:
    """Fit engine points into a profile: ``nccltune.calibration.Request`` says which, ``costmodel.profile`` writes it."""
    from nccltune.calibration import calibrate as fit_points

    return fit_points(request)
