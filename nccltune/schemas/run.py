"""The manifest of a run folder: machine, versions, command and plan. History of the format: 1 (2026-11) first."""

from typing import Any, Literal

from pydantic import Field

from nccltune.schemas.common import Strict
from nccltune.schemas.machine import Machine
from nccltune.schemas.measurement import Timing
from nccltune.schemas.setting import Setting

SCHEMA = "nccltune.run"
SCHEMA_VERSION = 1

RunStatus = Literal["running", "complete", "partial", "interrupted", "time_limit", "failed"]


class Confirmation(Strict):
    """One set of variables measured again, exactly as it would be written, in launches of its own."""

    env: dict[str, str]
    """As written, without the variables of the base."""
    setting: str
    num_launches: int
    """Pairs of launches, with it and with the base, in which every size gave a time."""
    problem: str = ""
    """Why a launch of it gave none; empty where all did."""
    other_collectives: dict[str, str] | None = None
    """Fault of each other collective under it, empty where its data was right; None where they were not run."""
    outcome: str


class Manifest(Strict):
    """Everything about a run but its measurements."""

    schema_version: int = SCHEMA_VERSION
    nccltune_version: str
    created_at: str
    command: list[str]
    run_id: str
    backend: str
    base: str
    base_env: dict[str, str]
    num_ranks: int
    dtype: str
    model: str | None
    tokens: list[int]
    size_bytes: list[int]
    timings: list[Timing]
    settings: list[Setting]
    plan_id: str
    """Hash of what is measured (back end, base, ranks, dtype, sizes, timings, settings): resume compares it."""
    seed: int = 0
    search: str = "full"
    machine: Machine
    status: RunStatus = "running"
    finished_at: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    """Measuring options that shape the samples: replays, layers of the forward, weights per layer."""
    notes: list[str] = Field(default_factory=list)

    @property
    def confirmations(self) -> list[Confirmation]:
        """What was confirmed, in order."""
        return [Confirmation.model_validate(found) for found in self.options.get("confirmations", [])]
