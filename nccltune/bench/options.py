"""How a walk measures, what it reports, and how it can end."""

from dataclasses import dataclass, field
from typing import Literal

from nccltune.bench.sampling import StopRule
from nccltune.schemas.measurement import Measurement

Outcome = Literal["complete", "interrupted", "time_limit"]


@dataclass(frozen=True)
class ScanOptions:
    """How to walk."""

    rule: StopRule = field(default_factory=StopRule)
    dedup: bool = True
    monitor_every: int = 8
    """Settings between two repetitions of the base."""
    time_budget_s: float | None = None
    weight_bytes: dict[int, int] = field(default_factory=dict)
    """Weights streamed between two all-reduces, by message size (in-forward timing)."""
    retry_failed: bool = False
    decode_sizes: tuple[int, ...] = ()
    """Sizes that decide between settings: those of a decode or verify forward."""
    beside: bool = False
    """After the settings, measure what an engine could use instead of NCCL too."""


@dataclass(frozen=True)
class Event:
    """Progress, for whoever draws it."""

    kind: Literal["case", "setting", "restart", "note"]
    text: str
    num_done: int
    num_total: int
    elapsed_s: float
    measurement: Measurement | None = None
