"""What 'emit' is asked for, and what it knows."""

from dataclasses import dataclass, field

from nccltune.emit.safety import EnginePath
from nccltune.knobs import Version
from nccltune.schemas.fit import Fit
from nccltune.schemas.measurement import Measurement
from nccltune.schemas.run import Manifest

MAX_PREFILL_COST_PERCENT = 10.0
"""Share of prefill communication that a gain at decode may cost before the user has to say so."""


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    format: str = "shell"
    setting: str = "best"
    full: bool = False
    objective: str | None = None
    max_prefill_cost_percent: float = MAX_PREFILL_COST_PERCENT
    draft_tokens: int | None = None
    num_steps: int | None = None
    eagle_topk: int = 1
    draft_model: str | None = None
    disable_custom_all_reduce: bool = False
    base: str = "sglang"
    nccl_version: str | None = None
    force: bool = False

    @property
    def engine_flags(self) -> tuple[str, ...]:
        """SGLang switches that were asked for."""
        return ("--disable-custom-all-reduce",) if self.disable_custom_all_reduce else ()


@dataclass(frozen=True)
class Source:
    """What is known: a run with its fit, or nothing; the engine's path; the NCCL installed here."""

    fit: Fit | None = None
    manifest: Manifest | None = None
    measurements: list[Measurement] = field(default_factory=list)
    bytes_per_token: int | None = None
    engine_path: EnginePath | None = None
    nccl_at_hand: Version | None = None
    nccl_measured: Version | None = None
