"""One finished case of a scan: what was asked, what NCCL really did, and the raw samples. One line of measurements.jsonl.

History of the format: 1 (2026-11) first.
"""

import hashlib
from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator

from nccltune.schemas.common import Strict
from nccltune.schemas.setting import Setting

SCHEMA = "nccltune.measurement"
SCHEMA_VERSION = 1

# Bytes of one element by type name.
ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}

Timing = Literal["in-forward", "back-to-back", "eager"]
Status = Literal["ok", "wrong_results", "not_in_force", "unsupported", "error", "timeout", "skipped"]
ErrorKind = Literal[
    "cuda",
    "nccl",
    "out_of_memory",
    "shm_space",
    "hang",
    "timeout",
    "no_algorithm",
    "crash",
    "usage",
    "disk_full",
    "no_mpi",
    "layout",
    "other_collective",
    "other",
]


class Case(Strict):
    """One point to measure: setting x size x timing on a number of ranks."""

    setting: Setting
    size_bytes: int = Field(gt=0)
    timing: Timing
    num_ranks: int = Field(gt=1)
    dtype: Literal["bfloat16", "float16", "float32"]
    base: str
    backend: str
    method: str = "nccl"
    """What sums: NCCL under the setting, or one of ``nccltune.methods``."""

    @property
    def id(self) -> str:
        """Stable identity: the same case has the same id in every run."""
        text = "|".join(
            (
                self.setting.id,
                str(self.size_bytes),
                self.timing,
                str(self.num_ranks),
                self.dtype,
                self.base,
                self.backend,
                *([self.method] if self.method != "nccl" else []),
            )
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Choice(Strict):
    """What NCCL really used for one size. Fields are None where this NCCL does not tell."""

    algo: str | None = None
    proto: str | None = None
    num_channels: int | None = None
    num_threads: int | None = None
    kernel: str | None = None
    transports: dict[str, int] = Field(default_factory=dict)
    source: str = ""
    """How it was read: ``nccl-log``, ``graph-node`` or both."""


class Rejected(Strict):
    """A variable that NCCL refused or clamped, in NCCL's words."""

    variable: str
    requested: str
    in_force: str | None = None
    message: str


class Failure(Strict):
    """Why a case has no time."""

    kind: ErrorKind
    message: str
    rank: int | None = None


class Measurement(Strict):
    """A finished case. ``samples_us`` is per all-reduce, one value per replay, the slowest rank of that replay."""

    model_config = ConfigDict(allow_inf_nan=False)

    case_id: str
    setting: Setting
    size_bytes: int
    count: int
    timing: Timing
    num_ranks: int
    dtype: str
    base: str
    backend: str
    method: str = "nccl"
    """``nccl`` for every setting; otherwise what an engine could use instead (``nccltune.methods``)."""
    status: Status
    in_force: bool | None = None
    """True: read back from the library. False: it did not take effect. None: the back end cannot tell."""
    rejected: list[Rejected] = Field(default_factory=list)
    choice: Choice | None = None
    nccl_model_us: float | None = None
    same_as: str | None = None
    """Case whose measurement this one shares, because both resolved to the same effective choice."""
    samples_us: list[float] = Field(default_factory=list)
    stats: dict[str, float] | None = None
    compute_us: float | None = None
    """In-forward timing: the compute between two all-reduces of the graph, per all-reduce."""
    num_wrong: int | None = None
    num_checked: int = 0
    num_per_replay: int = 0
    """All-reduces in one replay."""
    stop_reason: str = ""
    warnings: list[str] = Field(default_factory=list)
    error: Failure | None = None
    repeat: int = 0
    """0: the case itself. n: its n-th repetition by the drift monitor (``case_id`` ends in ``-rN``)."""
    order: int = 0
    """Position in the walk, for drift."""
    started_at: str = ""
    seconds: float = 0.0

    @model_validator(mode="after")
    def _times_exactly_when_ok(self) -> Self:
        if (self.status == "ok") != bool(self.samples_us):
            raise ValueError(
                f"status {self.status!r} with {len(self.samples_us)} samples: times are present exactly when a case is ok"
            )
        return self

    @property
    def median_us(self) -> float:
        """Median microseconds of one all-reduce; raises KeyError for a case without times."""
        if self.stats is None:
            raise KeyError(f"case {self.case_id} has no times: {self.status}")
        return self.stats["median"]
