"""A validation: what an engine measured against what was predicted, arm by arm, and what that says of the prediction.

History of the format: 1 (2026-11) first.
"""

from typing import Any, Self

from pydantic import Field, model_validator

from nccltune.schemas.common import Strict, Value
from nccltune.schemas.points import Phase
from nccltune.schemas.setting import Setting

SCHEMA = "nccltune.validation"
SCHEMA_VERSION = 1


class Measured(Strict):
    """A measured time in milliseconds. One sample gives a degenerate interval: nothing is known of its scatter."""

    value: float
    low: float
    high: float
    num_samples: int = 1

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not (self.low <= self.value <= self.high):
            raise ValueError(f"interval [{self.low}, {self.high}] does not hold the value {self.value}")
        return self


class Arm(Strict):
    """One measured quantity of one setting, batch size and draft-token count, with its prediction (milliseconds)."""

    phase: Phase
    setting: Setting
    batch_size: int
    draft_tokens: int
    context_tokens: int
    predicted: Value
    """For an arm that was calibrated on: the fitted time."""
    measured: Measured
    error_percent: float
    """``100 x (predicted / measured - 1)``: positive where the prediction is too slow."""
    inside_interval: bool
    """Whether the measured value lies in the predicted 90% interval."""
    used_for_calibration: bool
    """Such an arm is never scored."""
    accept_length: float | None = None
    """As measured, bonus token included."""
    engine: str = ""


class NotPredictable(Strict):
    """A measured arm without a prediction, and why."""

    phase: Phase
    setting: Setting
    batch_size: int
    draft_tokens: int
    context_tokens: int
    measured: Measured
    reason: str
    accept_length: float | None = None
    engine: str = ""


class Ranking(Strict):
    """Two settings whose measured times differ by more than 2% in the same case."""

    phase: Phase
    batch_size: int
    draft_tokens: int
    context_tokens: int
    faster: Setting
    slower: Setting
    measured_percent: float
    """How much slower the slower one was measured."""
    predicted_percent: float
    """How much slower it was predicted; not above 0 is ranked wrong."""
    right: bool


class Regret(Strict):
    """What choosing the draft-token count by predicted times costs, at the measured accept lengths."""

    setting: Setting
    batch_size: int
    context_tokens: int
    draft_tokens: list[int]
    """The counts that were compared: those with a measured cycle and its accept length, and plain decode."""
    chosen_draft_tokens: int
    best_draft_tokens: int
    regret_percent: float
    """Tokens/s lost against the best measured count."""


class Summary(Strict):
    """The score. None: there was nothing to tell it from."""

    num_scored: int
    mape_percent: float | None
    coverage_percent: float | None
    """Share of scored arms whose measured value lies in the predicted 90% interval."""
    worst_percent: float | None
    """Largest error of a scored arm, without its sign."""
    settings_ranked_right: bool | None
    regret_percent: float | None
    """Largest of the ``regrets``."""
    num_used_for_calibration: int = 0
    num_not_predictable: int = 0
    num_not_measured: int = 0
    """Of a live run: planned arms that failed or were not started."""
    mape_percent_by_phase: dict[str, float] = Field(default_factory=dict)
    tolerance_percent: float
    within_tolerance: bool | None
    """Whether no scored arm is off by more than the tolerance."""


class Validation(Strict):
    """The whole comparison."""

    schema_version: int = SCHEMA_VERSION
    nccltune_version: str
    created_at: str
    command: list[str]
    model: str
    drafter: str | None
    topology: str
    ranks: int
    run_id: str | None = None
    basis: str
    """What the predictions rest on."""
    arms: list[Arm]
    not_predictable: list[NotPredictable] = Field(default_factory=list)
    rankings: list[Ranking] = Field(default_factory=list)
    regrets: list[Regret] = Field(default_factory=list)
    summary: Summary
    findings: list[str] = Field(default_factory=list)
    """What to look at where it is off."""
    servers: list[dict[str, Any]] = Field(default_factory=list)
    """Of a live run: one record per server, failed ones included (nccltune.validation.records)."""
    warnings: list[str] = Field(default_factory=list)
    inputs: list[str] = Field(default_factory=list)
