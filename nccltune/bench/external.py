"""The walk with ``all_reduce_perf`` instead of ranks of our own: the same plan, the same records, one setting at a time."""

import datetime
import time
from collections.abc import Callable

from nccltune.bench.nccl_tests import NcclTestsBackend, NcclTestsOptions, find_all_reduce_perf, to_measurement
from nccltune.bench.options import Event, Outcome, ScanOptions
from nccltune.bench.stopping import StopSignals
from nccltune.plan import Plan
from nccltune.schemas.setting import Setting
from nccltune.store import Run


def walk_nccl_tests(
    run: Run, plan: Plan, options: ScanOptions, nccl_tests: str | None, on_event: Callable[[Event], None] | None
) -> Outcome:
    """Measure what the run does not hold yet; raises MachineError when there is no all_reduce_perf."""
    program = NcclTestsOptions(path=str(find_all_reduce_perf(nccl_tests)))
    backend = NcclTestsBackend(program, plan.num_ranks, plan.dtype)
    done = {m.case_id for m in run.measurements()}
    started = time.monotonic()
    deadline = started + options.time_budget_s if options.time_budget_s is not None else None
    tell = on_event or (lambda _: None)
    stop = StopSignals(
        lambda: tell(
            Event("note", "stopping after this setting", len(done), plan.num_cases, time.monotonic() - started)
        )
    )
    versions: set[str] = set()
    with stop:
        for setting in _settings(plan):
            cases = [c for size in plan.size_bytes if (c := plan.case(setting, size, "back-to-back")).id not in done]
            if not cases:
                continue
            if stop.requested or (deadline is not None and time.monotonic() > deadline):
                return "interrupted" if stop.requested else "time_limit"
            results = backend.measure(setting, plan.base_env, [case.size_bytes for case in cases], deadline)
            for case, result in zip(cases, results, strict=True):
                now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
                measurement = to_measurement(case, result, program, order=len(done), started_at=now)
                run.append([measurement])
                done.add(case.id)
                versions.update({result.nccl_version} if result.nccl_version else set())
                tell(
                    Event(
                        "case",
                        f"{setting.name}, {case.size_bytes} B",
                        len(done),
                        plan.num_cases,
                        time.monotonic() - started,
                        measurement,
                    )
                )
    notes = [f"nccl-tests loaded NCCL {version}" for version in sorted(versions)]
    run.update(notes=[*run.manifest.notes, *(note for note in notes if note not in run.manifest.notes)])
    return "complete"


def _settings(plan: Plan) -> list[Setting]:
    return [setting for _, members in plan.groups() for setting in members]
