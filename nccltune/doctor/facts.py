"""What the doctor looks at, gathered once and without judging. Every fact may be absent."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from nccltune.engine_path import EngineOptions
from nccltune.probe import host
from nccltune.probe.gpus import gpu_details, p2p_status
from nccltune.probe.machine import installed_version, machine_record
from nccltune.probe.nccl import package_folders
from nccltune.probe.nvml import Nvml
from nccltune.probe.visible import VARIABLE, visible_gpus
from nccltune.schemas.machine import Machine

NCCL_TESTS_NAME = "all_reduce_perf"


@dataclass(frozen=True, slots=True)
class Facts:
    """One machine as the checks see it; tests build these by hand."""

    machine: Machine
    nvml_why_not: str = ""
    compute_capability: str | None = None
    mig_enabled: bool | None = None
    p2p_status: dict[str, dict[str, str]] = field(default_factory=dict)
    cpu_vendor: Literal["intel", "amd", "other"] = "other"
    is_virtual: bool = False
    shm_total_bytes: int | None = None
    num_iommu_groups: int | None = None
    iommu_options: list[str] = field(default_factory=list)
    acs_redirecting: list[str] | None = None
    torch_has_cuda: bool = False
    nccl_tests: str | None = None
    sglang_version: str | None = None
    flashinfer_version: str | None = None
    sglang_nccl_so_path: str | None = None
    visible_devices: str | None = None

    @property
    def p2p_works(self) -> bool | None:
        """True where the driver allows peer access between all pairs, None where it does not tell."""
        codes = [code for row in self.p2p_status.values() for code in row.values()]
        return all(code == "OK" for code in codes) if codes else None

    @property
    def links_kind(self) -> Literal["nvlink", "pcie"] | None:
        """``nvlink`` where every pair of GPUs is joined by it; None with fewer than two GPUs or unknown links."""
        links = [name for row in self.machine.gpu_links.values() for name in row.values()]
        num_gpus = len(self.machine.gpus)
        if num_gpus < 2 or not links:
            return None
        return (
            "nvlink" if len(links) == num_gpus * (num_gpus - 1) and all(n.startswith("NV") for n in links) else "pcie"
        )

    def engine_options(self, flags: list[str]) -> EngineOptions:
        """Return the options of an engine with these flags on this machine."""
        here: dict[str, bool | None] = {"p2p_works": self.p2p_works}
        if self.sglang_version is not None:  # without SGLang here, the engine runs in an environment we do not see
            here["flashinfer_available"] = self.flashinfer_version is not None
        return EngineOptions.from_flags(flags, **here)


def gather(libnccl: str | None = None) -> Facts:
    """Gather the facts of this machine; raises InputError for an explicit libnccl that is none."""
    with Nvml() as nvml:
        machine = machine_record(nvml, libnccl=libnccl)
        visible = visible_gpus(nvml)
        details = gpu_details(nvml, visible[0] if visible else 0)
        status = p2p_status(nvml, visible)
        why_not = nvml.why_not
    shm = host.shm_bytes()
    return Facts(
        machine=machine,
        nvml_why_not=why_not,
        compute_capability=details.compute_capability,
        mig_enabled=details.mig_enabled,
        p2p_status=status,
        cpu_vendor=host.cpu_vendor(),
        is_virtual=host.is_virtual_machine(),
        shm_total_bytes=shm[0] if shm else None,
        num_iommu_groups=host.num_iommu_groups(),
        iommu_options=host.iommu_options(),
        acs_redirecting=host.acs_redirecting(),
        torch_has_cuda=any((root / "lib" / "libtorch_cuda.so").is_file() for root in package_folders("torch")),
        nccl_tests=find_nccl_tests(),
        sglang_version=installed_version("sglang"),
        flashinfer_version=installed_version("flashinfer-python") or installed_version("flashinfer"),
        sglang_nccl_so_path=os.environ.get("SGLANG_NCCL_SO_PATH"),
        visible_devices=os.environ.get(VARIABLE),
    )


def find_nccl_tests() -> str | None:
    """Return the path of all_reduce_perf: $NCCL_TESTS (the file, its folder or the clone), then PATH."""
    named = os.environ.get("NCCL_TESTS")
    if named:
        root = Path(named)
        for path in (root, root / NCCL_TESTS_NAME, root / "build" / NCCL_TESTS_NAME):
            if path.is_file() and os.access(path, os.X_OK):
                return str(path)
    return shutil.which(NCCL_TESTS_NAME)
