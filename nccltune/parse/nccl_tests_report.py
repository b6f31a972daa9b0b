"""The record of one nccl-tests run, and the judgement of it: is it usable, and if not, why not. Text and JSON end here."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from nccltune.parse.nccl_log import LogChoice, rejections_json
from nccltune.schemas.measurement import Failure, Rejected

RunStatus = Literal["ok", "incomplete", "failed", "wrong_results", "refused"]

# Half of the last printed digit against the value: beyond this a time is too coarse to compare (1.2e+07 is 4%).
_COARSE = 0.01
_ELEMENT_BYTES = {
    "half": 2,
    "bfloat16": 2,
    "float": 4,
    "double": 8,
    "int32": 4,
    "uint32": 4,
    "int": 4,
    "uint": 4,
    "int64": 8,
    "uint64": 8,
}


@dataclass(slots=True)
class Timing:
    """One half of a row: out of place or in place."""

    time_us: float
    algbw_gb_s: float | None
    busbw_gb_s: float | None
    num_wrong: int | None
    """None: not checked."""
    max_error: float | None = None
    """Largest deviation, printed instead of a count before 2.11."""
    is_coarse: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the fields of ``import --json``."""
        result: dict[str, Any] = {
            "time_us": self.time_us if math.isfinite(self.time_us) else None,
            "algbw_gb_s": self.algbw_gb_s,
            "busbw_gb_s": self.busbw_gb_s,
            "num_wrong": self.num_wrong,
        }
        if self.max_error is not None:
            result["max_error"] = self.max_error
        if self.is_coarse:
            result["low_precision"] = True
        return result

    @property
    def is_wrong(self) -> bool:
        """Whether the check found wrong results."""
        return bool(self.num_wrong)


@dataclass(slots=True)
class Row:
    """One message size."""

    size_bytes: int
    count: int
    dtype: str
    redop: str | None
    out_of_place: Timing | None
    in_place: Timing | None
    root: int | None = None
    usable: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return the fields of ``import --json``."""
        return {
            "size_bytes": self.size_bytes,
            "count": self.count,
            "dtype": self.dtype,
            "redop": self.redop,
            "out_of_place": self.out_of_place.to_json() if self.out_of_place else None,
            "in_place": self.in_place.to_json() if self.in_place else None,
            "usable": self.usable,
        }

    @property
    def timings(self) -> list[Timing]:
        """The halves that are there."""
        return [timing for timing in (self.out_of_place, self.in_place) if timing is not None]


@dataclass(slots=True)
class NcclTestsRun:
    """One run of an nccl-tests program."""

    collective: str | None = None
    num_ranks: int | None = None
    num_processes_at_rank_0: int = 0
    """Lines that call themselves rank 0: more than one means processes that do not know of each other."""
    rows: list[Row] = field(default_factory=list)
    status: RunStatus = "ok"
    error: Failure | None = None
    settings_in_force: dict[str, str] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)
    choices: list[LogChoice] = field(default_factory=list)
    nccl_version: str | None = None
    graph_launches: int | None = None
    is_cpu_time: bool = False
    is_started: bool = False
    """Whether the run got as far as its device list, its table's heading or a finished communicator."""
    is_finished: bool = False
    """Whether the closing lines are there."""
    num_out_of_bounds: int | None = None
    broken_sizes: list[int] = field(default_factory=list)
    """Rows that could not be put together again."""
    num_unread_rows: int = 0
    unfinished_bytes: int | None = None
    """Size that was being measured when the text ended."""
    warnings: list[str] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        """Whether its times may be used: wrong results anywhere disqualify the whole run."""
        return self.status in ("ok", "incomplete", "failed") and any(row.usable for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return one entry of ``runs`` of ``import --json``."""
        return {
            "collective": self.collective,
            "num_ranks": self.num_ranks,
            "status": self.status,
            "error": {"kind": self.error.kind, "message": self.error.message} if self.error else None,
            "usable": self.usable,
            "settings_in_force": self.settings_in_force,
            "settings_rejected": rejections_json(self.rejected),
            "nccl_version": self.nccl_version,
            "graph_launches": self.graph_launches,
            "rows": [row.to_json() for row in self.rows],
            "choices": [choice.to_json() for choice in self.choices],
            "warnings": self.warnings,
        }


def is_coarse(printed: str) -> bool:
    """Whether a printed number has too few digits to compare: ``1.2e+07`` is anything from 1.15e7 to 1.25e7."""
    mantissa, _, exponent = printed.lower().partition("e")
    whole, _, decimals = mantissa.partition(".")
    value = abs(float(mantissa))
    return bool(exponent or whole) and value > 0 and 0.5 * 10 ** -len(decimals) / value > _COARSE


def ranks_from_bandwidth(run: NcclTestsRun) -> int | None:
    """Number of ranks from busbw / algbw = 2 (n - 1) / n, where the printed digits leave only one.

    9.68 / 5.53 = 1.7505 gives n = 2 / (2 - 1.7505) = 8.02, so 8; a ratio of 0 is one rank.
    """
    if run.collective != "all_reduce":
        return None
    low, high = 1.0, 1e9
    is_known = False
    for timing in (timing for row in run.rows for timing in row.timings):
        alg, bus = timing.algbw_gb_s, timing.busbw_gb_s
        if alg is None or bus is None or alg < 0.1:
            continue
        is_known = True
        least, most = max(bus - 0.005, 0.0) / (alg + 0.005), (bus + 0.005) / (alg - 0.005)
        low = max(low, 2 / (2 - least) if least < 2 else 1e9)
        high = min(high, 2 / (2 - most) if most < 2 else 1e9)
    candidates = [n for n in range(1, 1025) if low <= n <= high] if is_known else []
    return candidates[0] if len(candidates) == 1 else None


def name_collective(run: NcclTestsRun) -> None:
    """Tell the collective of a report that does not name it by its columns (NVIDIA/nccl-tests src/*.cu).

    Only reductions have an operation; reduce has a root; the ranks share the bytes in reduce_scatter and all_gather.
    """
    if run.collective is not None or not run.rows:
        return
    row = max(run.rows, key=lambda row: row.size_bytes)
    is_whole = row.size_bytes == row.count * _ELEMENT_BYTES.get(row.dtype, 1)
    if row.redop in (None, "none"):
        run.collective = "broadcast" if _has_root(row) else "sendrecv" if is_whole else "all_gather"
    else:
        run.collective = "reduce" if _has_root(row) else "all_reduce" if is_whole else "reduce_scatter"
    run.warnings.append(f"the report does not name its collective: by its columns it is {run.collective}")


def judge(run: NcclTestsRun, failure: Failure | None) -> NcclTestsRun:
    """Set status, error and usable rows from what was read; ``failure`` is what the text says went wrong, if anything."""
    name_collective(run)
    if run.num_ranks is None:
        run.num_ranks = ranks_from_bandwidth(run)
    _judge_rows(run)
    refusal = _refusal(run)
    if refusal is not None:
        run.status, run.error = "refused", refusal
        for row in run.rows:
            row.usable = False
    elif any(timing.is_wrong for row in run.rows for timing in row.timings) or run.num_out_of_bounds:
        run.status = "wrong_results"
        if run.num_out_of_bounds and not any(t.is_wrong for row in run.rows for t in row.timings):
            for row in run.rows:
                row.usable = False
            run.warnings.append("the check failed, but no row says where: no row is usable")
    elif not run.is_finished and failure is not None:
        run.status, run.error = "failed", failure
    elif not run.is_finished:
        _judge_unfinished(run)
    _warn(run)
    return run


def _has_root(row: Row) -> bool:
    return row.root is not None and row.root >= 0


def _judge_rows(run: NcclTestsRun) -> None:
    for row in run.rows:
        times_ok = bool(row.timings) and all(0 < timing.time_us < 1e12 for timing in row.timings)
        row.usable = times_ok and row.size_bytes > 0 and not any(timing.is_wrong for timing in row.timings)
        if not times_ok:
            run.warnings.append(f"the row of {row.size_bytes} bytes has no usable time")


def _refusal(run: NcclTestsRun) -> Failure | None:
    if run.collective not in ("all_reduce", None):
        return Failure(kind="other_collective", message=f"this is {run.collective}, not all_reduce")
    if run.rows and (run.num_processes_at_rank_0 > 1 or run.num_ranks == 1):
        return Failure(
            kind="no_mpi",
            message="one rank only, so nothing was communicated: the program was built without MPI=1, or ran with one GPU",
        )
    if run.is_cpu_time:
        return Failure(kind="layout", message="the report gives CPU time (-C), not the time of the collective")
    if run.num_unread_rows and not run.rows:
        return Failure(kind="layout", message=f"{run.num_unread_rows} rows in a layout that is not known")
    if run.is_finished and not run.rows:
        return Failure(kind="layout", message="the closing lines are there, but no row before them can be read")
    return None


def _judge_unfinished(run: NcclTestsRun) -> None:
    run.status = "incomplete"
    if run.unfinished_bytes is not None or not (run.rows or run.broken_sizes):
        where = f"at {run.unfinished_bytes} bytes" if run.unfinished_bytes is not None else "before the first size"
        run.error = Failure(
            kind="hang",
            message=f"stopped {where} with neither a result nor an error: try NCCL_P2P_DISABLE=1, check IOMMU and ACS",
        )
    else:
        run.warnings.append("the closing lines are missing: the report was cut, or the run stopped")


def _warn(run: NcclTestsRun) -> None:
    timings = [(row, timing) for row in run.rows for timing in row.timings]
    if coarse := sorted({row.size_bytes for row, timing in timings if timing.is_coarse}):
        sizes = ", ".join(map(str, coarse))
        run.warnings.append(
            f"times of {sizes} bytes are printed with too few digits to compare (see algbw for a better one)"
        )
    if timings and all(timing.num_wrong is None for _, timing in timings):
        run.warnings.append("results were not checked: whether they are right is unknown")
    if run.broken_sizes:
        sizes = ", ".join(map(str, run.broken_sizes))
        run.warnings.append(
            f"rows of {sizes} bytes are broken by other output and could not be joined safely: left out"
        )
    if run.num_unread_rows and run.rows:
        run.warnings.append(f"{run.num_unread_rows} rows could not be read: left out")
    if run.rejected:
        names = ", ".join(r.variable for r in run.rejected)
        run.warnings.append(f"not in force: {names}; do not credit the times to it")
