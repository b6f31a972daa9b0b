"""A profile: what engine points taught about one model on one machine with one engine, kept for predictions.

History of the format: 1 (2026-11) first.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from nccltune.schemas.common import Strict
from nccltune.schemas.fit import SettingFit
from nccltune.schemas.points import Point
from nccltune.schemas.setting import Setting

SCHEMA = "nccltune.profile"
SCHEMA_VERSION = 1

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Parameter(Strict):
    """One parameter of the model: its value now, and what was believed before."""

    name: str
    unit: str
    value: Finite
    spread: NotNegative
    """Standard deviation of the logarithm (of the value itself for an exponent)."""
    prior_value: Finite
    prior_spread: NotNegative
    prior_source: str
    exponent: bool = False

    @model_validator(mode="after")
    def _positive(self) -> Self:
        if not self.exponent and min(self.value, self.prior_value) <= 0:
            raise ValueError(f"{self.name} must be positive")
        return self


class FittedPoint(Strict):
    """An engine point with what the model says of it."""

    point: Point
    context_tokens: int = Field(ge=0)
    model_ms: Positive
    """Sum of the terms, without the smooth correction."""
    fitted_ms: Positive
    """With it: what a prediction at this point gives."""
    gradient: list[Finite]
    """Derivative of ln(model_ms) by each parameter."""


class Discrepancy(Strict):
    """Smooth correction for what the terms cannot express, and the scatter of a measured time (relative)."""

    spread: NotNegative
    noise: NotNegative
    scale: Positive = 1.0
    """How much larger than believed the misfit of the points is (variance ratio)."""


class ProfileAcceptance(Strict):
    """Mean accept length that came with the points."""

    mean: float
    low: float
    high: float
    num_steps: int = Field(ge=1, le=1024)
    """Positions it was measured over."""
    source: str

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not 1 <= self.low <= self.mean <= self.high <= self.num_steps + 1:
            raise ValueError("an accept length needs 1 <= low <= mean <= high <= num_steps + 1")
        return self


class Profile(Strict):
    """One calibrated model on one machine."""

    schema_version: int = SCHEMA_VERSION
    nccltune_version: str
    created_at: str
    command: list[str]
    name: str
    title: str
    model: str
    drafter: str | None
    topology: str
    run_id: str | None = None
    """Run whose curves it holds."""
    machine: str
    """Fingerprint of the measured machine, or a description where the points are published ones."""
    engine: str
    num_ranks: int = Field(ge=1)
    context_tokens: int = Field(ge=0)
    basis: Literal["measured", "published", "analytic"]
    basis_note: str
    reference_setting: str
    """Setting whose curve the others are ratios of, where they have none."""
    best_setting: str
    settings: list[Setting]
    curves: list[SettingFit]
    """Communication curves used; settings without one are inferred from the points."""
    parameters: list[Parameter]
    covariance: list[list[Finite]]
    discrepancy: Discrepancy
    points: list[FittedPoint]
    acceptance: ProfileAcceptance | None = None
    warnings: list[str] = Field(default_factory=list)
    inputs: list[str] = Field(default_factory=list)
