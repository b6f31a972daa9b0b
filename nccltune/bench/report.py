"""A whole scan: prepare, walk, fit. What the scan command and its Python twin share."""

import contextlib
import datetime
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from nccltune.bench.beside_walk import beside_cases
from nccltune.bench.confirm import Confirm, ablations
from nccltune.bench.execution import execute, tracked
from nccltune.bench.options import Event, Outcome
from nccltune.bench.request import Prepared, ScanRequest, check_resumable, prepare, resume_request
from nccltune.bench.session import Session
from nccltune.costmodel.points import Cells
from nccltune.costmodel.run_fit import fit_run
from nccltune.errors import InputError, InterruptedRunError, MachineError, NoBasisError, QualityError
from nccltune.plan import unique_names
from nccltune.registry import load_model
from nccltune.schemas.fit import Fit
from nccltune.schemas.measurement import Measurement
from nccltune.schemas.run import Confirmation
from nccltune.schemas.setting import Setting
from nccltune.store import Run

# Launches of one setting differ by 3 to 5% on a quiet machine (docs/measuring.md); beyond this no difference that NCCL settings make is told.
UNUSABLE_SD = 0.15
_MIN_REPEATS = 3


@dataclass(frozen=True)
class ScanResult:
    """What a scan left behind."""

    run: Run
    prepared: Prepared
    outcome: Outcome
    fit: Fit | None
    no_fit_reason: str
    counts: dict[str, int]
    """Cases by status."""
    notes: list[str]
    started_s: float = 0.0
    """When the walk began, by the monotonic clock: a time budget is for all of it."""
    env_file: str | None = None
    no_env_reason: str = ""

    @cached_property
    def measurements(self) -> list[Measurement]:
        """What the run holds of NCCL settings, loaded once."""
        return self.run.measurements()

    @cached_property
    def quality_problem(self) -> str:
        """Why the quality gate fails, or empty: nothing usable, wrong sums, failed cases of the base itself, or noise."""
        measurements = self.measurements
        wrong = list(dict.fromkeys(m.setting.name for m in measurements if m.status == "wrong_results"))
        if wrong:
            return f"wrong sums under {', '.join(wrong)}: unusable on this machine"
        if not self.counts.get("ok"):
            return "no case gave a time"
        if self.fit is None:
            return f"no cost model could be fitted: {self.no_fit_reason}"
        bad = [m for m in measurements if m.setting.name == "base" and m.status not in ("ok", "not_in_force")]
        if bad:
            return f"the base setting has {len(bad)} case(s) without a time ({bad[0].status} at {bad[0].size_bytes} B)"
        spread = Cells.make(measurements).spread
        # gloo stands for nothing but the way of working: its noise is told, and no gate.
        if self.run.manifest.backend != "gloo" and spread.num_repeats >= _MIN_REPEATS and spread.sd > UNUSABLE_SD:
            return f"repetitions of one setting differ by {100 * spread.sd:.0f}% (standard deviation): too noisy to rank anything"
        return ""


def scan(
    request: ScanRequest | None, *, output: Path | None, resume: Path | None, on_event: Callable[[Event], None] | None
) -> ScanResult:
    """Measure into a new run, or go on with an old one, then fit what is there.

    Raises InterruptedRunError when it was stopped at once; stopped after a case, it returns with that outcome.
    """
    if resume is not None:
        run = Run.load(resume)
        if request is not None and output is not None and output.resolve() != run.path.resolve():
            raise InputError(
                f"-o {output} does not go with --resume {resume}", "a resumed run stays where it is", "leave -o out"
            )
        prepared = prepare(resume_request(run, request))
        check_resumable(prepared, run)
    elif request is None:
        raise InputError("nothing to scan", "neither a request nor a run to resume was given", "give one of them")
    else:
        prepared = prepare(request)
        run = Run.create(output or default_folder(), prepared.manifest())
    is_left = _missing(prepared, run)
    notes = [] if is_left else [f"{run.path} holds every case already: nothing is measured"]
    if run.num_cut_lines:
        notes.append(f"{run.num_cut_lines} line(s) of the run were cut by a crash: their cases count as not measured")
    started = time.monotonic()
    with _stopped_at_once(run):
        outcome = execute(prepared, run, on_event) if is_left else _complete(run)
    fit, reason = _fit(run, prepared)
    notes += list(dict.fromkeys([*prepared.notes, *run.manifest.notes]))
    counts = Counter(m.status for m in run.measurements() if not m.repeat)
    return ScanResult(
        run, prepared, outcome, fit, reason, {str(k): n for k, n in counts.items()}, notes, started_s=started
    )


def confirm(
    result: ScanResult, env: dict[str, str], scanned: dict[str, str], on_event: Callable[[Event], None] | None
) -> ScanResult:
    """Measure exactly ``env`` against the base in fresh launches, take each variable away once, and fit the run again.

    ``scanned``: the same variables as the scan spelled them (``Ring`` where ``env`` has ``allreduce:ring``).

    The settings join the run's plan, so that a later fit and the minimal set see them. What could not be started is a note:
    the scan stands. Raises InterruptedRunError like a scan.
    """
    run, prepared = result.run, result.prepared
    known = {setting.id: setting for setting in run.manifest.settings}
    wanted = Setting.make(scanned)
    best = known.get(wanted.id, wanted)
    extra = [s for s in [best, *ablations(best)] if s.id not in known]
    # The run's plan, not the prepared one: an earlier confirmation may have added to it.
    plan = unique_names(replace(prepared.plan, settings=[*run.manifest.settings, *extra]))
    run.update(settings=plan.settings, plan_id=plan.id)
    options = replace(prepared.options, beside=False, time_budget_s=_time_left(result))
    walk = Confirm(run, plan, Session(prepared.session), options, on_event, best=best, exact_env=env)
    try:
        with _stopped_at_once(run):
            outcome = tracked(run, walk.walk)
    except MachineError as error:
        run.update(status=result.outcome)
        return replace(result, notes=[*result.notes, f"the winner was not confirmed: {error.what} ({error.why})"])
    found = Confirmation(
        env=env, setting=best.name, num_launches=walk.num_launches, problem=walk.problem, other_collectives=walk.faults, outcome=outcome
    )  # fmt: skip
    run.update(options={**run.manifest.options, "confirmations": [*run.manifest.options.get("confirmations", []), found.model_dump()]})  # fmt: skip
    fit, _ = _fit(run, prepared)
    return replace(result, fit=fit or result.fit, outcome=outcome)


def _time_left(result: ScanResult) -> float | None:
    budget = result.prepared.options.time_budget_s
    return None if budget is None else max(budget - (time.monotonic() - result.started_s), 0.0)


@contextlib.contextmanager
def _stopped_at_once(run: Run) -> Iterator[None]:
    """Say how to go on when the second interrupt ends a walk."""
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedRunError(
            "interrupted", "what is done is saved", f"go on with: nccltune scan --resume {shlex.quote(str(run.path))}"
        ) from None


def check_same_plan(resume: Path, request: ScanRequest, aspects: set[str]) -> None:
    """Check that flags given beside ``--resume`` ask for what the run holds; raises InputError where they do not.

    ``aspects``: the fields of a plan that the flags speak of.
    """
    from nccltune.probe import collect_machine

    run, machine = Run.load(resume), collect_machine()
    plan, asked_model = prepare(request, machine).plan, request.model.name if request.model else None
    there = prepare(resume_request(run, request), machine).plan
    for what in sorted(aspects - {"settings"}):
        asked, has = (
            (asked_model, run.manifest.model) if what == "model" else (getattr(plan, what), getattr(there, what))
        )
        if asked != has:
            raise InputError(
                f"--resume {resume} and the other flags do not fit together",
                f"{what}: the run has {has}, the flags ask for {asked}",
                "leave the other flags out: the plan is the run's",
            )
    more = {s.id: s.name for s in plan.settings if s.id not in {other.id for other in there.settings}}
    if more and "settings" in aspects:
        raise InputError(
            f"--resume {resume} and the other flags do not fit together",
            f"the run has no setting {', '.join(more.values())}",
            "leave the other flags out, or start a new run",
        )


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


def _missing(prepared: Prepared, run: Run) -> bool:
    """Whether a case is left to measure."""
    again = {"error", "timeout"} if prepared.request.retry_failed else set()
    done = {m.case_id for m in run.all_measurements() if m.status not in again}
    beside = beside_cases(prepared.plan) if prepared.options.beside else []
    return any(case.id not in done for case in (*prepared.plan.cases(), *beside))


def _complete(run: Run) -> Outcome:
    """Nothing is left: the run says so, which a scan stopped after its very last case did not."""
    if run.manifest.status != "complete":
        run.update(status="complete")
    return "complete"


def _fit(run: Run, prepared: Prepared) -> tuple[Fit | None, str]:
    model = prepared.request.model or (load_model(run.manifest.model) if run.manifest.model else None)
    try:
        fit = fit_run(run, model=model, timing=None)
    except (NoBasisError, QualityError) as error:
        return None, error.what
    run.save_fit(fit)
    return fit, ""
