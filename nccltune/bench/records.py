"""From what happened to a case to its record. Times only where a case is ok."""

import datetime
from typing import Any

from nccltune.bench.group import RankFailure, classify
from nccltune.schemas.measurement import ELEMENT_BYTES, Case, Failure, Measurement, Rejected

_MAX_MESSAGE = 2000
_STATUS_OF_KIND = {"hang": "timeout", "timeout": "timeout", "no_algorithm": "unsupported"}
_SHARED_FIELDS = ("samples_us", "stats", "compute_us", "num_wrong", "num_checked", "num_per_replay", "stop_reason")


def record(case: Case, status: str, **fields: Any) -> Measurement:
    """A record of ``case`` with the given status."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    return Measurement.model_validate(
        {
            "case_id": case.id, "setting": case.setting, "size_bytes": case.size_bytes, "count": case.size_bytes // ELEMENT_BYTES[case.dtype],
            "timing": case.timing, "num_ranks": case.num_ranks, "dtype": case.dtype, "base": case.base, "backend": case.backend,
            "method": case.method, "status": status, "started_at": now, **fields,
        }
    )  # fmt: skip


def failed(case: Case, failure: RankFailure) -> Measurement:
    """A case that a failure of the ranks left without a time."""
    error = Failure(kind=failure.kind, message=failure.message[:_MAX_MESSAGE], rank=failure.rank)
    return record(case, _STATUS_OF_KIND.get(failure.kind, "error"), error=error)


def unresolved(case: Case, text: str) -> Measurement:
    """A case for which NCCL found nothing to run, in its words."""
    return failed(case, RankFailure(classify(text, "nccl"), text, 0, group_alive=True))


def not_in_force(case: Case, reason: str, base: Measurement | None) -> Measurement:
    """A case whose setting did not take effect: nothing is measured, nothing is credited; the base's case is named."""
    rejected = [Rejected(variable=name, requested=value, message=reason) for name, value in case.setting.env.items()][
        :1
    ]
    same_as = base.case_id if base else None
    return record(case, "not_in_force", in_force=False, same_as=same_as, rejected=rejected, warnings=[reason])


def shared(case: Case, measured: Measurement) -> Measurement:
    """A case that runs the very kernel launch of ``measured``, and takes its samples."""
    copied = {name: getattr(measured, name) for name in _SHARED_FIELDS}
    return record(case, "ok", same_as=measured.case_id, **copied)


def skipped(case: Case, reason: str, same_as: str | None = None) -> Measurement:
    """A case that a search left out, with the reason."""
    return record(case, "skipped", same_as=same_as, warnings=[reason])
