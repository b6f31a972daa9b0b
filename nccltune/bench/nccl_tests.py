"""The ``nccl-tests`` back end: ``all_reduce_perf`` by subprocess, one setting at a time, in an environment of its own."""

from dataclasses import dataclass, field

from nccltune.bench.effective import Resolution
from nccltune.bench.nccl_tests_program import (
    Call,
    NcclTestsOptions,
    Program,
    find_all_reduce_perf,
    supports_json,
)
from nccltune.bench.size_runs import SizeRun, size_runs
from nccltune.errors import InputError
from nccltune.knobs import refusals
from nccltune.parse.nccl_log import LogChoice, NcclLog
from nccltune.parse.nccl_table import predicted_us
from nccltune.schemas.measurement import ELEMENT_BYTES, Case, Choice, Failure, Measurement, Rejected, Status
from nccltune.schemas.setting import Setting
from nccltune.stats import summarize

__all__ = [
    "NcclTestsBackend", "NcclTestsOptions", "NcclTestsResult", "find_all_reduce_perf", "measure_setting", "supports_json",
    "to_measurement",
]  # fmt: skip

_STATUS: dict[str, Status] = {
    "no_algorithm": "unsupported",
    "usage": "unsupported",
    "hang": "timeout",
    "timeout": "timeout",
}


@dataclass(slots=True)
class NcclTestsResult:
    """What one setting gave for one size."""

    size_bytes: int
    in_place_us: list[float] = field(default_factory=list)
    """One per call: the mean of its iterations."""
    out_of_place_us: list[float] = field(default_factory=list)
    num_wrong: int | None = None
    """None: not checked."""
    num_checked: int = 0
    choice: Choice | None = None
    nccl_model_us: float | None = None
    rejected: list[Rejected] = field(default_factory=list)
    in_force: bool | None = None
    why_not_in_force: str = ""
    failure: Failure | None = None
    warnings: list[str] = field(default_factory=list)
    nccl_version: str | None = None
    seconds: float = 0.0

    @property
    def status(self) -> Status:
        """Status of the record: times count only when results are right and the setting took effect."""
        if self.num_wrong:
            return "wrong_results"
        if self.failure is not None:
            return _STATUS.get(self.failure.kind, "error")
        if self.in_force is False:
            return "not_in_force"
        return "ok" if self.in_place_us or self.out_of_place_us else "skipped"


def measure_setting(
    setting: Setting,
    base_env: dict[str, str],
    size_bytes: list[int],
    num_ranks: int,
    dtype: str,
    *,
    options: NcclTestsOptions,
    deadline: float | None = None,
) -> list[NcclTestsResult]:
    """Measure one setting at every size, one result per size in the order given; a failure is a result.

    ``deadline`` is a time of time.monotonic(); what it leaves unmeasured fails with kind ``timeout``.
    """
    backend = NcclTestsBackend(options, num_ranks, dtype)
    return backend.measure(setting, base_env, size_bytes, deadline)


class NcclTestsBackend:
    """One setting after another, each in calls of its own, so that no variable is ever read twice by one library."""

    def __init__(self, options: NcclTestsOptions, num_ranks: int, dtype: str) -> None:
        self.options = options
        self.program = Program(options, num_ranks, dtype)

    def measure(
        self, setting: Setting, base_env: dict[str, str], size_bytes: list[int], deadline: float | None = None
    ) -> list[NcclTestsResult]:
        """Probe, then time ``launches`` times, the sizes interleaved."""
        odd = [size for size in size_bytes if size < 1 or size % self.program.element_bytes]
        if odd:
            raise InputError(
                f"{odd[0]} bytes is no whole number of {self.program.dtype} elements",
                "",
                "choose other sizes or another type",
            )
        results = {size: NcclTestsResult(size) for size in size_bytes}
        env = {**base_env, **setting.env}
        runs = size_runs(size_bytes)
        if self.options.probe:
            for run in runs:
                self._apply_probe(setting, run, self.program.call(run, env, deadline, is_probe=True), results)
        for _ in range(self.options.launches):
            for run in runs:
                open_sizes = [
                    size for size in run.sizes if results[size].failure is None and not results[size].num_wrong
                ]
                if open_sizes:
                    self._apply_times(open_sizes, self.program.call(run, env, deadline), results)
        return [results[size] for size in size_bytes]

    def _apply_probe(self, setting: Setting, run: SizeRun, call: Call, results: dict[int, NcclTestsResult]) -> None:
        log = call.log or NcclLog()
        told = resolution(setting.env, log)
        logged = {c.size_bytes: c for c in log.choices if c.collective in ("AllReduce", "")}
        for size in run.sizes:
            result = results[size]
            result.seconds += call.seconds / len(run.sizes)
            result.nccl_version = call.nccl_version
            result.rejected = told.rejected
            choice = logged.get(size)
            if choice is not None:
                result.choice = told.choices[size]
                result.nccl_model_us = _model_us(choice, log)
            result.in_force, result.why_not_in_force = told.in_force(size, setting.env)
            if call.failure is not None and size not in call.rows:
                result.failure = call.failure

    def _apply_times(self, sizes: list[int], call: Call, results: dict[int, NcclTestsResult]) -> None:
        for size in sizes:
            result, row = results[size], call.rows.get(size)
            result.seconds += call.seconds / len(sizes)
            result.nccl_version = result.nccl_version or call.nccl_version
            if row is None:
                result.failure = call.failure or Failure(kind="layout", message="the report has no row of this size")
                continue
            if call.failure is not None and call.failure.kind == "no_mpi":
                result.failure = call.failure
                continue
            checked = [timing.num_wrong for timing in row.timings if timing.num_wrong is not None]
            if checked:
                result.num_wrong = (result.num_wrong or 0) + sum(checked)
                result.num_checked += len(checked) * row.count
            if row.in_place is not None and row.in_place.time_us > 0:
                result.in_place_us.append(row.in_place.time_us)
            if row.out_of_place is not None and row.out_of_place.time_us > 0:
                result.out_of_place_us.append(row.out_of_place.time_us)


def resolution(env: dict[str, str], log: NcclLog) -> Resolution:
    """Tell from a probe's log what of ``env`` is in force; an empty log cannot tell."""
    result = Resolution(can_tell=not log.is_empty)
    result.rejected = [r for r in log.rejected if r.variable in env]
    known = {r.variable for r in result.rejected}
    result.rejected += [r for r in refusals(env) if r.variable not in known]
    refused = {r.variable for r in result.rejected}
    result.not_read = [name for name in env if name not in log.settings_in_force and name not in refused]
    for choice in log.choices:
        if choice.collective in ("AllReduce", ""):
            result.choices[choice.size_bytes] = Choice(
                algo=choice.algo, proto=choice.proto, num_channels=choice.num_channels, num_threads=choice.num_threads,
                kernel=choice.symmetric_kernel, transports=log.transports, source="nccl-log",
            )  # fmt: skip
    return result


def to_measurement(case: Case, result: NcclTestsResult, options: NcclTestsOptions, **record: object) -> Measurement:
    """Turn a result into the record of a scan; ``record`` holds ``order`` and ``started_at``. Times only when it is ok."""
    samples = result.in_place_us if options.placement == "in_place" else result.out_of_place_us
    samples = samples or result.in_place_us or result.out_of_place_us
    status = result.status
    failure = result.failure
    if status == "not_in_force":
        failure = Failure(kind="other", message=result.why_not_in_force or "the setting did not take effect")
    is_ok = status == "ok"
    return Measurement.model_validate(
        {
            "case_id": case.id, "setting": case.setting, "size_bytes": case.size_bytes, "timing": case.timing,
            "count": case.size_bytes // ELEMENT_BYTES[case.dtype], "num_ranks": case.num_ranks, "dtype": case.dtype,
            "base": case.base, "backend": case.backend, "status": status, "in_force": result.in_force,
            "rejected": result.rejected, "choice": result.choice, "nccl_model_us": result.nccl_model_us,
            "samples_us": samples if is_ok else [], "stats": summarize(samples).to_dict() if is_ok else None,
            "num_wrong": result.num_wrong, "num_checked": result.num_checked, "num_per_replay": options.iters,
            "warnings": result.warnings, "error": failure, "seconds": result.seconds, **record,
        }
    )  # fmt: skip


def _model_us(choice: LogChoice, log: NcclLog) -> float | None:
    if choice.predicted_us is not None:
        return choice.predicted_us
    if log.model_table is None or choice.algo is None or choice.proto is None:
        return None
    return predicted_us(log.model_table, choice.algo, choice.proto, choice.size_bytes)
