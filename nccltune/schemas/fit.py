"""The fit of a run: per setting, the measured points, alpha-beta pieces beside them and how far they can be trusted.

History of the format: 1 (2026-11) first.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from nccltune.schemas.common import Source, Strict
from nccltune.schemas.measurement import Choice, Timing
from nccltune.schemas.setting import Setting

SCHEMA = "nccltune.fit"
SCHEMA_VERSION = 1


class CurvePoint(Strict):
    """One point of a communication curve: microseconds of one all-reduce with its 90% interval."""

    size_bytes: int = Field(gt=0)
    time_us: float = Field(gt=0, allow_inf_nan=False)
    low_us: float = Field(ge=0, allow_inf_nan=False)
    high_us: float = Field(gt=0, allow_inf_nan=False)
    source: Source = "measured"
    choice: Choice | None = None


class Piece(Strict):
    """``time_us = alpha_us + size_bytes * us_per_byte`` between two sizes."""

    proto: str
    from_bytes: int
    to_bytes: int
    alpha_us: float
    us_per_byte: float
    max_error_percent: float


class LeaveOneOut(Strict):
    """Error of predicting each inner size from the others, percent."""

    median_percent: float
    worst_percent: float
    num_points: int


class VersusBase(Strict):
    """Communication of the decode forwards against the base, percent (negative: faster), with its 90% interval."""

    percent: float
    low_percent: float
    high_percent: float
    verdict: Literal["base", "same", "faster", "slower", "unclear"]
    """``same``: it resolved to the choices of the base. ``unclear``: the interval holds both."""


class SettingFit(Strict):
    """One setting's curve."""

    setting: Setting
    timing: Timing
    usable: bool
    reason: str = ""
    """Why it is not usable or not credited (wrong results, not in force, errors)."""
    same_as: str | None = None
    """Name of the setting that resolved to the same choices at every size."""
    points: list[CurvePoint] = Field(default_factory=list)
    pieces: list[Piece] = Field(default_factory=list)
    leave_one_out: LeaveOneOut | None = None
    forward_us: dict[str, float] = Field(default_factory=dict)
    """Communication of one forward by number of tokens, microseconds."""
    forward_interval_us: dict[str, tuple[float, float]] = Field(default_factory=dict)
    """90% interval of each ``forward_us``."""
    versus_base: VersusBase | None = None
    """None where it cannot be ranked: not usable, or not measured at every decode size."""

    @model_validator(mode="after")
    def _one_point_a_size(self) -> Self:
        if len({p.size_bytes for p in self.points}) < len(self.points):
            raise ValueError(f"setting '{self.setting.name}' has a size twice")
        return self


class BesideFit(Strict):
    """What an engine could use instead of NCCL, measured in the same run."""

    method: str
    label: str
    timing: Timing
    usable: bool
    reason: str = ""
    """Why it was not measured, or is not usable."""
    points: list[CurvePoint] = Field(default_factory=list)
    forward_us: dict[str, float] = Field(default_factory=dict)
    forward_interval_us: dict[str, tuple[float, float]] = Field(default_factory=dict)
    versus_base: VersusBase | None = None
    versus_best: VersusBase | None = None
    """Against the best NCCL setting (the base where none beats it); None where a decode size is missing."""


class Fit(Strict):
    """All curves of a run, ranked by the communication of the model's forward."""

    schema_version: int = SCHEMA_VERSION
    nccltune_version: str
    created_at: str
    command: list[str]
    run_id: str
    machine: str
    num_ranks: int
    base: str
    base_env: dict[str, str] = Field(default_factory=dict)
    model: str | None
    timing: Timing
    """The timing that predictions use; others are kept beside it."""
    settings: list[SettingFit]
    """Fastest first for ``timing``, then what cannot be ranked, then the curves of other timings."""
    decode_tokens: list[int] = Field(default_factory=list)
    """Tokens per forward that the ranking adds up."""
    best: str | None
    """Name of the fastest usable setting at decode sizes, None when nothing beats the base beyond noise."""
    tied_with_best: list[str] = Field(default_factory=list)
    beside: list[BesideFit] = Field(default_factory=list)
    """Other all-reduces than NCCL's, fastest first, then those that are not usable here."""
    warnings: list[str] = Field(default_factory=list)
