"""An engine point: one measured time of a real engine, as a line of a points file gives it."""

from typing import Literal, Self

from pydantic import Field, model_validator

from nccltune.schemas.common import Strict
from nccltune.schemas.limits import MAX_BATCH, MAX_DRAFT_TOKENS
from nccltune.schemas.setting import BASE, Setting

Phase = Literal["decode", "verify", "draft", "cycle"]
PHASES: tuple[Phase, ...] = ("decode", "verify", "draft", "cycle")
Use = Literal["", "calibrate", "score"]


class Point(Strict):
    """One measured time. ``accept_length`` counts the bonus token; plain decode is 1."""

    phase: Phase
    batch_size: int = Field(ge=1, le=MAX_BATCH)
    draft_tokens: int = Field(default=1, ge=1, le=MAX_DRAFT_TOKENS)
    context_tokens: int | None = Field(default=None, ge=0)
    """None: not given; the caller's default applies."""
    time_ms: float = Field(ge=1e-3, lt=1e6, allow_inf_nan=False)
    """At least 1 us: no forward of an engine is faster."""
    accept_length: float | None = Field(default=None, ge=1, allow_inf_nan=False)
    setting: Setting = BASE
    engine: str = ""
    use: Use = ""
    source: str = ""

    @model_validator(mode="after")
    def _phase_fits(self) -> Self:
        if self.phase == "decode" and self.draft_tokens != 1:
            raise ValueError("a decode point has draft_tokens 1")
        if self.phase != "decode" and self.draft_tokens < 2:
            raise ValueError(f"a {self.phase} point needs draft_tokens of at least 2")
        if self.accept_length is not None and self.accept_length > self.draft_tokens:
            raise ValueError(f"accept_length {self.accept_length:g} is above draft_tokens {self.draft_tokens}")
        return self

    @property
    def label(self) -> str:
        """Short name: ``cycle:1:3 seed``."""
        return f"{self.phase}:{self.batch_size}:{self.draft_tokens} {self.setting.name}"
