"""What a profiler trace says of an engine's forwards: all-reduces per forward, which kernels, and their time.

History of the format: 1 (2026-11) first.
"""

from typing import Literal

from pydantic import Field

from nccltune.schemas.common import Strict, Value

SCHEMA = "nccltune.trace"
SCHEMA_VERSION = 1

Method = Literal["nccl", "nccl-symmetric", "custom", "flashinfer-fusion", "mscclpp", "torch-symm-mem", "quick-reduce"]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "other"]
TraceKind = Literal["torch-profiler", "nsys-gpu-trace", "nsys-kernel-sum"]


class CollectiveKernel(Strict):
    """One kernel by name, as it occurs in the forwards of one kind."""

    name: str
    collective: Collective
    method: Method
    algo: str | None = None
    """What the name tells. NCCL compiles one kernel for Tree and one for everything else, and calls both LL."""
    per_forward: float
    median_us: float
    total_us: float
    """Per forward."""
    num_blocks: int | None = None
    """Grid of the launch where it is the same in all: the channels of an NCCL kernel."""


class ForwardKind(Strict):
    """Forwards that hold the same collectives: the target's, the drafter's."""

    num_forwards: int
    allreduces_per_forward: float
    allgathers_per_forward: float
    kernels_per_forward: float
    allreduce_us: float
    """Sum over one forward, median: time in the kernels, waiting for the slowest rank included."""
    allreduce_low_us: float
    allreduce_high_us: float
    span_us: float
    """First kernel's start to last kernel's end, median."""
    step_us: float | None = None
    """Start to start of one forward and the next of its kind, median; None with one forward."""
    kernels: list[CollectiveKernel]


class TraceReport(Strict):
    """One trace. ``target`` is the kind of forward that the model's all-reduces are in; None where none was found."""

    schema_version: int = SCHEMA_VERSION
    nccltune_version: str
    created_at: str
    command: list[str]
    kind: TraceKind
    device: int | None = None
    """The device looked at: the one that waits least, where the trace holds several."""
    num_devices: int
    delimited_by: str
    """How one forward was told from the next."""
    model: str | None = None
    expected_allreduces: int | None = None
    count_confirmed: bool | None = None
    """Whether the engine makes as many all-reduces a forward as the model file says."""
    methods: list[Method] = Field(default_factory=list)
    """Which all-reduces the engine used, most frequent first."""
    nccl_settings_matter: bool | None = None
    """Whether NCCL carries the target's all-reduces."""
    target: ForwardKind | None = None
    others: list[ForwardKind] = Field(default_factory=list)
    predicted_allreduce_us: Value | None = None
    """Model's count x in-forward cost of the run's curve at the message of this forward, where both are given."""
    error_percent: float | None = None
    """``100 x (predicted / allreduce_us - 1)``."""
    outside_allreduces: int = 0
    """All-reduces outside every forward that was told apart (prefill, eager parts)."""
    warnings: list[str] = Field(default_factory=list)
    inputs: list[str] = Field(default_factory=list)
