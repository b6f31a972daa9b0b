"""Walk a prepared scan into its run, with the right back end, and leave the manifest telling how it ended."""

import contextlib
import datetime
from collections.abc import Callable

from nccltune import run_lock
from nccltune.bench.options import Event, Outcome
from nccltune.bench.race import Race
from nccltune.bench.request import Prepared
from nccltune.bench.scan import Scan
from nccltune.bench.session import Session
from nccltune.errors import NccltuneError
from nccltune.schemas.run import RunStatus
from nccltune.store import Run


def execute(prepared: Prepared, run: Run, on_event: Callable[[Event], None] | None = None) -> Outcome:
    """Walk the plan into ``run`` and set its status. Raises nothing for failed cases: they are records."""
    return tracked(run, lambda: _walk(prepared, run, on_event))


def tracked(run: Run, walk: Callable[[], Outcome]) -> Outcome:
    """Run a walk with the manifest telling that it runs, and then how it ended."""
    run_lock.take(run.path)  # before the manifest of a scan that may be measuring is touched
    run.update(status="running")
    status: RunStatus = "failed"
    try:
        outcome = walk()
        status = outcome
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        # Where the walk itself failed (a full disk), its error is the one to show.
        with contextlib.suppress(NccltuneError) if status == "failed" else contextlib.nullcontext():
            run.update(status=status, finished_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
    return outcome


def _walk(prepared: Prepared, run: Run, on_event: Callable[[Event], None] | None) -> Outcome:
    if prepared.plan.backend == "nccl-tests":
        from nccltune.bench.external import walk_nccl_tests

        return walk_nccl_tests(run, prepared.plan, prepared.options, prepared.request.nccl_tests, on_event)
    session = Session(prepared.session)
    walk = Race if prepared.request.search == "race" and prepared.plan.backend == "nccl" else Scan
    outcome = walk(run, prepared.plan, session, prepared.options, on_event).walk()
    _note_library(run, session)
    return outcome


def _note_library(run: Run, session: Session) -> None:
    """Complete the machine record with what only the ranks know."""
    machine = run.manifest.machine
    if session.facts:
        machine = machine.model_copy(update={"torch_version": session.facts[0].get("torch_version")})
    if session.nccl_version and machine.nccl is not None:
        machine = machine.model_copy(update={"nccl": machine.nccl.model_copy(update={"version": session.nccl_version})})
    run.update(machine=machine)
