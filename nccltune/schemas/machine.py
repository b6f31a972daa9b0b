"""What machine this is: hardware, driver, libraries. Stored with every run; holds no secrets and no environment dump."""

from pydantic import Field

from nccltune.schemas.common import Strict


class GpuRecord(Strict):
    """One GPU as NVML tells it. Absent facts are None."""

    index: int
    name: str
    memory_bytes: int | None = None
    pci_bus_id: str | None = None
    numa_node: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttle_reasons: list[str] = Field(default_factory=list)
    used_memory_bytes: int | None = None
    num_processes: int | None = None


class LibraryRecord(Strict):
    """The libnccl that was measured."""

    path: str
    version: str
    sha256_16: str = ""
    source: str = ""
    """Who chose it: ``torch``, ``--libnccl`` or ``nccl-tests``."""


class Machine(Strict):
    """One machine at one moment."""

    hostname_hash: str
    """Eight hex digits: enough to tell machines apart, too few to name one."""
    os: str
    kernel: str
    python: str
    cpu_model: str
    num_cpus: int
    memory_bytes: int
    shm_free_bytes: int | None = None
    gpus: list[GpuRecord] = Field(default_factory=list)
    """Those that CUDA programs see, in CUDA's order; ``index`` is NVML's."""
    num_hidden_gpus: int = 0
    """How many more there are, hidden by CUDA_VISIBLE_DEVICES."""
    gpu_links: dict[str, dict[str, str]] = Field(default_factory=dict)
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    torch_version: str | None = None
    nccl: LibraryRecord | None = None
    nccl_conf_files: list[str] = Field(default_factory=list)
    inherited_nccl: dict[str, str] = Field(default_factory=dict)
    """NCCL_* variables found in the environment; dropped for the workers."""
    topology: str | None = None
    """Name of the matching topology file, if one matches."""

    @property
    def fingerprint(self) -> str:
        """What must agree for two runs to be comparable: GPUs, driver, NCCL; what there is not, or is not known, is left out."""
        names = ",".join(sorted({g.name for g in self.gpus}))
        parts = [f"{len(self.gpus)}x {names}" if self.gpus else f"{self.cpu_model}, no GPU"]
        parts += [f"driver {self.driver_version}"] if self.driver_version else []
        parts += [f"NCCL {self.nccl.version}"] if self.nccl and self.nccl.version else []
        return "; ".join([*parts, f"host {self.hostname_hash}"])
