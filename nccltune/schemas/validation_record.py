"""Lines of a live validation's ``records.jsonl``: one per server and one per arm, failures included.

History of the format: 1 (2026-11) first.
"""

from typing import Any, Literal

from pydantic import Field

from nccltune.schemas.common import Strict
from nccltune.schemas.setting import Setting
from nccltune.schemas.validation import Measured

SCHEMA = "nccltune.validation-record"
SCHEMA_VERSION = 1

ErrorKind = Literal[
    "port_held", "not_started", "crash", "out_of_memory", "nccl", "usage", "start_timeout", "hang", "garbage", "wrong_version",
    "request_failed", "unclean", "interrupted",
]  # fmt: skip


class Trouble(Strict):
    """What went wrong with a server or an arm."""

    kind: ErrorKind
    message: str


class Cleanup(Strict):
    """What was confirmed after a server was stopped. None: could not be looked at here."""

    port_free: bool
    num_processes_left: int
    gpu_memory_back: bool | None
    killed: bool
    """Whether it had to be killed after the polite signal."""
    seconds: float

    @property
    def is_clean(self) -> bool:
        """Whether the next server finds the machine as this one did."""
        return self.port_free and self.num_processes_left == 0 and self.gpu_memory_back is not False


class ServerRecord(Strict):
    """One server: how it was started, which all-reduce it used, how it ended."""

    record: Literal["server"] = "server"
    server_id: str
    setting: Setting
    draft_tokens: int
    argv: list[str]
    env: dict[str, str]
    """NCCL and SGLang variables that it was given."""
    dropped_env: list[str] = Field(default_factory=list)
    """Inherited NCCL variables that it did not get."""
    status: Literal["ok", "failed"]
    error: Trouble | None = None
    engine: str = ""
    start_s: float | None = None
    """From the launch to the first generated token."""
    all_reduce: dict[str, Any] = Field(default_factory=dict)
    """Path, whether NCCL settings matter, and the evidence."""
    acceptance: str = ""
    """Where accept lengths come from: real, or simulated."""
    cleanup: Cleanup | None = None
    log: str = ""
    log_tail: list[str] = Field(default_factory=list)
    """Of a failed server: its last lines."""
    warnings: list[str] = Field(default_factory=list)
    created_at: str


class ArmRecord(Strict):
    """One batch size on one server."""

    record: Literal["arm"] = "arm"
    arm_id: str
    setting: Setting
    draft_tokens: int
    batch_size: int
    status: Literal["ok", "failed"]
    error: Trouble | None = None
    phase: Literal["decode", "cycle"]
    context_tokens: int | None = None
    """Mean context of the measured steps: prompt and half of the output."""
    time_ms: Measured | None = None
    timing: str = ""
    """Whose clock: the server's own step times, or the client's."""
    samples_ms: list[float] = Field(default_factory=list)
    client_ms: float | None = None
    verify_ms: Measured | None = None
    """Target forward of a traced step; None without a trace."""
    trace: dict[str, Any] | None = None
    accept_length: float | None = None
    """Tokens per verify, bonus token included: output tokens of all requests / their verifies."""
    accept_lengths: dict[str, float] = Field(default_factory=dict)
    """The same by source: requests, server info, metrics, log."""
    tokens_per_s: float | None = None
    engine: str = ""
    seconds: float = 0.0
    warnings: list[str] = Field(default_factory=list)
    created_at: str
