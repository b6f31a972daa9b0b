"""A ``topology/`` file: one kind of machine. SI base units in the names; bandwidths are one direction, per GPU."""

from typing import Literal, Self

from pydantic import Field, model_validator

from nccltune.schemas.common import Strict
from nccltune.schemas.setting import BASE, Setting


class Gpu(Strict):
    """One GPU of the machine."""

    name: str
    nvml_names: list[str] = Field(default_factory=list)
    """Names as NVML prints them, to recognise this machine."""
    memory_bytes: float = Field(gt=0)
    memory_bandwidth_bytes_per_s: float = Field(gt=0)
    l2_bytes: float = Field(gt=0)
    bf16_flop_per_s: float = Field(gt=0)
    """Dense, without sparsity."""
    compute_capability: str


class Links(Strict):
    """How the GPUs reach each other."""

    kind: Literal["nvlink", "pcie"]
    name: str
    bandwidth_bytes_per_s: float = Field(gt=0)
    worst_gpu_link: str = ""
    """As ``nvidia-smi topo -m`` writes it: NV18, PIX, PHB, SYS."""


class AllreduceCurve(Strict):
    """A published or measured all-reduce curve: microseconds by message size for one setting and rank count."""

    library: str
    version: str
    mode: Literal["eager", "graph", "in-forward"]
    setting: Setting = BASE
    num_ranks: int = Field(gt=1)
    size_bytes: list[int]
    time_us: list[float]
    source: str
    note: str = ""

    @model_validator(mode="after")
    def _paired(self) -> Self:
        if len(self.size_bytes) != len(self.time_us) or not self.size_bytes:
            raise ValueError("size_bytes and time_us must be equally long and not empty")
        if sorted(set(self.size_bytes)) != self.size_bytes:
            raise ValueError("size_bytes must rise")
        if min(self.time_us) <= 0:
            raise ValueError("time_us must be positive")
        return self


class Topology(Strict):
    """One kind of machine."""

    name: str
    title: str
    aliases: list[str] = Field(default_factory=list)
    num_gpus: int = Field(gt=0)
    gpu: Gpu
    links: Links
    allreduce: list[AllreduceCurve] = Field(default_factory=list)
    source: list[str] = Field(min_length=1)
