"""A run as a pandas DataFrame, for notebooks and spreadsheets: one row a case, units in the column names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nccltune.errors import NccltuneError
from nccltune.outputs import check_output
from nccltune.schemas.measurement import Measurement
from nccltune.store import Run

if TYPE_CHECKING:
    import pandas as pd

_FIRST_COLUMNS = b"setting,variables,method,timing,"
_STATS = ("n", "median", "low", "high", "mad", "p5", "p95", "p99", "min", "max")


def measurements_frame(run: str | Path) -> pd.DataFrame:
    """Return every case of a run, repetitions and methods beside NCCL included, in the order of the walk.

    Times are microseconds of one all-reduce (NaN where a case has none); ``busbw_gb_s`` is nccl-tests' bus bandwidth,
    bytes / time x 2(n-1)/n. Raises InputError for a folder that holds no run.
    """
    import pandas as pd

    measured = sorted(Run.load(Path(run)).all_measurements(), key=lambda m: m.order)
    return pd.DataFrame([_row(m) for m in measured])


def write_csv(run: str | Path, path: str | Path) -> int:
    """Write the frame as CSV and return the number of rows; raises NccltuneError where it cannot be written."""
    check_output(Path(path), ours=lambda head: head.startswith(_FIRST_COLUMNS))
    frame = measurements_frame(run)
    try:
        frame.to_csv(path, index=False)
    except OSError as error:
        raise NccltuneError(f"cannot write {path}", error.strerror or str(error), "choose another place") from error
    return len(frame)


def _row(m: Measurement) -> dict[str, Any]:
    stats, choice = m.stats or {}, m.choice
    median = stats.get("median")
    factor = 2 * (m.num_ranks - 1) / m.num_ranks
    return {
        "setting": m.setting.name, "variables": m.setting.id, "method": m.method, "timing": m.timing, "size_bytes": m.size_bytes,
        "num_ranks": m.num_ranks, "dtype": m.dtype, "base": m.base, "backend": m.backend, "repeat": m.repeat, "status": m.status,
        "in_force": m.in_force, **{("n" if k == "n" else f"{k}_us"): stats.get(k) for k in _STATS},
        "busbw_gb_s": m.size_bytes / median / 1e3 * factor if median else None, "compute_us": m.compute_us,
        "nccl_model_us": m.nccl_model_us, "algo": choice.algo if choice else None, "proto": choice.proto if choice else None,
        "num_channels": choice.num_channels if choice else None, "num_threads": choice.num_threads if choice else None,
        "same_as": m.same_as, "num_wrong": m.num_wrong, "error": m.error.message if m.error else None, "order": m.order,
        "started_at": m.started_at, "case_id": m.case_id,
    }  # fmt: skip
