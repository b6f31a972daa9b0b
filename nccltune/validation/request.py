"""What a live validation is asked for. Stored whole in the folder, so that a resume goes on with exactly that."""

from pathlib import Path

from pydantic import Field

from nccltune.schemas.common import Strict

SCHEMA = "nccltune.validation-request"
SCHEMA_VERSION = 1
DEFAULT_LAUNCH = "python3 -m sglang.launch_server"


class LiveRequest(Strict):
    """Servers to run, the load of every arm, and what the predictions rest on."""

    model_path: str = ""
    draft_model_path: str | None = None
    model: str
    """Model file, alias, path or config.json."""
    run: str | None = None
    profile: str | None = None
    topology: str | None = None
    drafter: str | None = None
    settings: list[str] = Field(default_factory=lambda: ["base", "best"])
    draft_tokens: list[int] = Field(default_factory=lambda: [1, 3])
    batch: list[int] = Field(default_factory=lambda: [1])
    context: int = Field(default=1024, ge=1)
    output_tokens: int = Field(default=256, ge=16)
    repeats: int = Field(default=3, ge=1)
    tp: int | None = None
    port: int | None = None
    launch: str = DEFAULT_LAUNCH
    extra_args: str = ""
    env: dict[str, str] = Field(default_factory=dict)
    load_format: str | None = None
    nccl_all_reduce: bool = False
    """Switch the engine's own all-reduces off, so that NCCL carries them."""
    simulate_accept_length: float | None = Field(default=None, ge=1)
    prompts: str | None = None
    profile_steps: int = Field(default=0, ge=0)
    attach: str | None = None
    calibrate: list[str] = Field(default_factory=list)
    """Arms to calibrate on: ``SETTING:BATCH:DRAFT_TOKENS``."""
    ready_limit_s: float = Field(default=1800.0, gt=0)
    stall_s: float = Field(default=120.0, gt=0)
    tolerance: float = Field(default=5.0, gt=0)

    @property
    def run_path(self) -> Path | None:
        """Run folder."""
        return Path(self.run) if self.run else None
