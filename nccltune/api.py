"""The Python twin of every command: ``nccltune.scan(...)``, ``nccltune.predict(...)``. Thin: each calls one room.

Imports stay inside the functions, so that using one command does not load what another needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

_MAX_CONFIRMATIONS = 3

if TYPE_CHECKING:
    import pandas as pd

    from nccltune.bench.options import Event
    from nccltune.bench.report import ScanResult
    from nccltune.bench.request import ScanRequest
    from nccltune.emit.emission import Emitted
    from nccltune.emit.lint import Report
    from nccltune.schemas.fit import Fit
    from nccltune.schemas.points import Point
    from nccltune.schemas.prediction import Prediction
    from nccltune.schemas.profile import Profile
    from nccltune.schemas.trace import TraceReport
    from nccltune.schemas.validation import Validation
    from nccltune.validation.request import LiveRequest
    from nccltune.validation.session import Progress


def scan(
    request: ScanRequest | None = None,
    *,
    output: str | Path | None = None,
    resume: str | Path | None = None,
    confirm: bool = True,
    on_event: Callable[[Event], None] | None = None,
) -> ScanResult:
    """Measure a plan into a run folder, fit it, confirm the winner and write ``nccl.env`` beside it.

    ``resume`` goes on with an existing run instead. ``confirm`` (back end nccl) measures exactly what is emitted against
    the base in fresh launches. Raises InputError or MachineError before anything runs; failed cases are records.
    """
    from dataclasses import replace

    from nccltune.bench import report

    result = report.scan(
        request, output=Path(output) if output else None, resume=Path(resume) if resume else None, on_event=on_event
    )
    if confirm:
        result = _confirmed(result, on_event)
    if result.fit is not None:
        written, problem = _emitted(result.run.path, output=result.run.path / "nccl.env")
        result = replace(result, env_file=written.path if written else None, no_env_reason=problem)
    return result


def _confirmed(result: ScanResult, on_event: Callable[[Event], None] | None) -> ScanResult:
    """Confirm what would be emitted, and again what is left of it then, until the very set that is written was confirmed."""
    from nccltune.bench import report

    # Each round can only take variables away, or find that another setting is the best: more than a few say that it is noise.
    for _ in range(_MAX_CONFIRMATIONS):
        found = _to_confirm(result)
        if found is None:
            break
        before = len(result.run.manifest.confirmations)
        result = report.confirm(result, *found, on_event)
        if result.outcome != "complete" or len(result.run.manifest.confirmations) == before:
            break
    return result


def _to_confirm(result: ScanResult) -> tuple[dict[str, str], dict[str, str]] | None:
    """What is written beyond the base, and the same as the scan spelled it; None where nothing is left to confirm.

    Back ends other than nccl are left alone: their launches cost too much.
    """
    manifest, fit = result.run.manifest, result.fit
    if manifest.backend != "nccl" or result.outcome != "complete" or fit is None or fit.best is None:
        return None
    chosen, _ = _emitted(result.run.path)
    if chosen is None:  # refused for its cost at prefill: who accepts that will want the confirmation too
        chosen, _ = _emitted(result.run.path, objective="decode")
    if chosen is None:
        return None
    env = {k: v for k, v in chosen.document.env.items() if manifest.base_env.get(k) != v}
    if not env or any(c.env == env and c.outcome == "complete" for c in manifest.confirmations):
        return None
    best = next(s.setting for s in fit.settings if s.setting.name == fit.best)
    return env, {k: best.env[k] for k in env if k in best.env}


def _emitted(run: Path, output: Path | None = None, objective: str | None = None) -> tuple[Emitted | None, str]:
    """What ``emit`` makes of a run, or the reason why it refuses."""
    from nccltune.emit import emission
    from nccltune.errors import NccltuneError

    try:
        return emission.emit(run, output=output, objective=objective), ""
    except NccltuneError as error:
        return None, str(error)


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


def frame(run: str | Path) -> pd.DataFrame:
    """Every case of a run as a pandas DataFrame, one row each, units in the column names."""
    from nccltune.export import measurements_frame

    return measurements_frame(run)


def write_csv(run: str | Path, path: str | Path) -> int:
    """Write every case of a run as CSV and return how many there are."""
    from nccltune import export

    return export.write_csv(run, path)


def emit(
    run: str | Path | None = None, *, output: str | Path | None = None, model: str | None = None, **options: Any
) -> Emitted:
    """Write the settings worth exporting; ``options`` are the fields of :class:`nccltune.emit.request.Options`.

    Raises InputError for what cannot be done, QualityError for what should not be done without ``force=True``.
    """
    from nccltune.emit import emission

    return emission.emit(run, output=output, model=model, **options)


def check(file: str | Path, *, format: str = "auto", nccl_version: str | None = None, pid: int | None = None) -> Report:
    """Lint an env file as its reader would take it; ``pid`` compares with a running process.

    Raises InputError for a file or process that cannot be read.
    """
    from nccltune.emit.grammar import parse_version
    from nccltune.emit.lint import check_file

    return check_file(str(file), format, parse_version(nccl_version) if nccl_version else None, pid)


def predict(
    draft_tokens: int | Sequence[int],
    *,
    batch: int | Sequence[int] = (1,),
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
    tree_rates: Sequence[Sequence[float]] | None = None,
    accept_kind: Literal["auto", "survival", "conditional"] = "auto",
    accept_log: str | Path | None = None,
    accept_steps: int | None = None,
    topk: int = 1,
    num_steps: int | None = None,
    explain: bool = False,
) -> Prediction:
    """Predict verify time, cycle, tokens/s and the best draft-token count; without a run from a shipped reference.

    ``topk`` above 1 is a tree of ``num_steps`` steps; ``tree_rates`` are its acceptance by position and rank. Raises InputError for what does not fit together or is impossible.
    """
    from nccltune.costmodel import prediction
    from nccltune.costmodel.acceptance_input import resolve_acceptance
    from nccltune.costmodel.basis import Question
    from nccltune.costmodel.tree import Shape

    widths = [draft_tokens] if isinstance(draft_tokens, int) else list(draft_tokens)
    batches = [batch] if isinstance(batch, int) else list(batch)
    shape = Shape(topk, num_steps)
    acceptance = resolve_acceptance(
        accept_length=accept_length, accept_rates=accept_rates, accept_kind=accept_kind, tree_rates=tree_rates,
        accept_log=Path(accept_log) if accept_log else None, accept_steps=accept_steps, draft_tokens=widths, shape=shape,
    )  # fmt: skip
    question = Question(model, drafter, topology, Path(run) if run else None, profile, setting, ranks, quant, context)
    return prediction.predict(question, widths, batches, acceptance, shape=shape, explain=explain)


def write_adaptive_config(prediction: Prediction, path: str | Path) -> None:
    """Write the prediction's ladder as the file of SGLang's ``--speculative-adaptive-config``.

    Keys are batch sizes, each with the draft-step counts worth having there (0: plain decode); a batch takes the largest
    key below it. Raises NoBasisError when no acceptance is known, because then no count is better than another.
    """
    from nccltune.errors import NoBasisError
    from nccltune.outputs import check_output
    from nccltune.store import write_json

    if not prediction.adaptive_config:
        raise NoBasisError(
            "there is no ladder to write", "the best draft-token count needs an acceptance, and none is known",
            "give --accept-length, --accept-rates or --accept-log",
        )  # fmt: skip
    check_output(Path(path), ours=_is_ladder)
    write_json(Path(path), dict(prediction.adaptive_config))


def _is_ladder(head: bytes) -> bool:
    """Whether a file is an adaptive configuration: a JSON object whose keys are batch sizes."""
    import re

    # By its beginning: a ladder of many batch sizes is longer than what is looked at.
    return re.match(rb'\s*\{\s*"\d+"\s*:', head) is not None


def calibrate(
    model: str,
    points: str | Path | Sequence[str] | Sequence[Point],
    *,
    run: str | Path | None = None,
    topology: str | None = None,
    drafter: str | None = None,
    ranks: int | None = None,
    engine: str = "",
    context: int = 4096,
    name: str = "",
    allow_mixed: bool = False,
    output: str | Path | None = None,
) -> Profile:
    """Fit engine points into a profile, and write it to ``output`` if given.

    ``points``: the path of a CSV, texts such as ``decode:1:11.26``, or Point records. Raises InputError.
    """
    from nccltune.calibration import calibrate as fit_points
    from nccltune.calibration import gather_request
    from nccltune.costmodel.profile import save_profile
    from nccltune.outputs import check_output

    if output is not None:
        check_output(Path(output), [points] if isinstance(points, str | Path) else [])
    request = gather_request(
        points, Path(run) if run else None, model=model, context=context, topology=topology, drafter=drafter,
        ranks=ranks, engine=engine, name=name, allow_mixed=allow_mixed,
    )  # fmt: skip
    profile = fit_points(request)
    if output is not None:
        save_profile(profile, Path(output))
    return profile


def validate_points(
    points: str | Path | Sequence[Point],
    *,
    model: str,
    run: str | Path | None = None,
    profile: str | None = None,
    topology: str | None = None,
    drafter: str | None = None,
    ranks: int | None = None,
    context: int | None = None,
    tolerance: float = 5.0,
    allow_mixed: bool = False,
) -> Validation:
    """Calibrate on the points marked ``calibrate``, predict every other one, and compare; nothing is started.

    Whether it is good enough is in ``summary.within_tolerance``; nothing is raised for that. Raises InputError.
    """
    from nccltune.validation import points as room
    from nccltune.validation.predictor import Subject

    where = Path(run) if run else None
    subject = Subject(model, where, profile, topology, drafter, ranks, context, allow_mixed)
    if isinstance(points, str | Path):
        return room.validate_file(Path(points), subject, tolerance)
    return room.validate_points(points, subject, tolerance)


def validate_trace(
    trace: str | Path,
    *,
    model: str | None = None,
    run: str | Path | None = None,
    setting: str | None = None,
    batch: int = 1,
    draft_tokens: int = 1,
) -> TraceReport:
    """Count and time the all-reduces of a forward in a torch profiler trace or a CSV of Nsight Systems.

    With ``run``, the run's in-forward cost of a forward over ``batch x draft_tokens`` is put beside it. Raises InputError.
    """
    from nccltune.validation.trace import analyze_file, with_prediction

    found = analyze_file(Path(trace), model)
    return with_prediction(found, Path(run), setting, batch * draft_tokens) if run else found


def validate_sglang(
    request: LiveRequest | None = None,
    *,
    output: str | Path | None = None,
    resume: str | Path | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[Validation, Path]:
    """Run a server per arm (or go on with ``resume``), measure, compare; returns the comparison and its folder.

    Raises InputError before anything starts, InterruptedRunError with what is done saved, QualityError when no arm worked.
    """
    from nccltune.validation.live import validate_sglang as run_live

    return run_live(request, Path(output) if output else None, Path(resume) if resume else None, on_progress)


def plan_validation(request: LiveRequest | None = None, *, resume: str | Path | None = None) -> dict[str, Any]:
    """What ``validate_sglang`` would run: commands, variables, arms, and about how many seconds."""
    from nccltune.validation.live import plan_document

    return plan_document(request, Path(resume) if resume else None)


def validate(what: Literal["points", "trace", "sglang"], *args: Any, **options: Any) -> Any:
    """Do what ``nccltune validate WHAT`` does: see validate_points, validate_trace and validate_sglang."""
    twins: dict[str, Callable[..., Any]] = {
        "points": validate_points,
        "trace": validate_trace,
        "sglang": validate_sglang,
    }
    return twins[what](*args, **options)
