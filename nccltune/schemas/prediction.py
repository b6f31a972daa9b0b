"""A prediction: what every draft-token count costs and yields, with intervals and sources.

History of the format: 1 (2026-11) first.
"""

from typing import Any

from pydantic import Field

from nccltune.schemas.common import Strict, Value
from nccltune.schemas.setting import Setting

SCHEMA = "nccltune.prediction"
SCHEMA_VERSION = 1


class AcceptanceUsed(Strict):
    """Acceptance behind the answer. ``survival`` is empty where nothing is known."""

    definition: str
    survival: list[float]
    num_measured: int = 0
    assumption: str = ""
    source: str


class Row(Strict):
    """One draft-token count at one batch size. None: nothing is known to compute it from.

    ``cycle_ms = verify_ms + draft_ms + host_ms``; at 1 draft token a cycle is one plain decode step.
    """

    batch_size: int
    draft_tokens: int
    num_steps: int
    topk: int = 1
    allreduce_bytes: int
    allreduces_per_forward: int
    comm_ms: Value
    compute_ms: Value
    overhead_ms: Value
    verify_ms: Value
    draft_ms: Value
    host_ms: Value
    cycle_ms: Value
    accept_length: Value | None
    tokens_per_s: Value | None
    speedup: Value | None
    """Tokens per second against plain decode with the same setting and batch."""
    break_even_accept_length: Value
    """Accept length from which speculation pays. At least 1, the bonus token: there it pays at any acceptance. Above ``draft_tokens``
    it cannot pay."""


class Baseline(Strict):
    """Plain decode with the setting of the answer, at the first batch size."""

    setting: Setting
    decode_ms: Value
    tokens_per_s: Value


class Best(Strict):
    """The draft-token count with the most tokens per second; ``tied_with`` cannot be told from it."""

    batch_size: int
    draft_tokens: int
    tied_with: list[int]
    tokens_per_s: Value
    speedup: Value
    speculate: bool


class Sensitivity(Strict):
    """What a change is worth at the best draft-token count of the first batch size."""

    cycle_ms_per_allreduce_us: float
    tokens_per_s_per_allreduce_us: float | None
    tokens_per_s_per_tenth_accept_length: float | None


class TermLine(Strict):
    """One term of one row, for ``--explain``."""

    group: str
    term: str
    value_ms: float
    base: str
    parameter: str
    source: str


class Prediction(Strict):
    """The whole answer."""

    schema_version: int = SCHEMA_VERSION
    nccltune_version: str
    created_at: str
    command: list[str]
    model: str
    drafter: str | None
    topology: str
    ranks: int
    setting: Setting
    context_tokens: int
    basis: str
    """What the answer rests on: a profile, a run, published curves or nothing."""
    what_if: list[str] = Field(default_factory=list)
    acceptance: AcceptanceUsed
    rows: list[Row]
    baseline: Baseline
    default_setting_baseline: Baseline | None = None
    """Plain decode with the engine's default NCCL settings, where that differs and is known."""
    best: Best | None
    best_by_batch: list[Best] = Field(default_factory=list)
    sensitivity: Sensitivity | None = None
    adaptive_config: dict[str, Any] | None = None
    """For SGLang's --speculative-adaptive-config: candidate steps by batch size."""
    findings: list[str] = Field(default_factory=list)
    explain: list[TermLine] | None = None
    explained_row: Row | None = None
    warnings: list[str] = Field(default_factory=list)
