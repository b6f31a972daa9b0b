"""One machine record, from NVML, psutil, /proc and /sys; and which topology file it matches."""

import contextlib
import importlib.metadata
import os
import platform

from nccltune import registry
from nccltune.errors import InputError, MachineError
from nccltune.probe import gpus, host, nccl
from nccltune.probe.nvml import Nvml
from nccltune.probe.visible import visible_gpus
from nccltune.schemas.machine import LibraryRecord, Machine
from nccltune.schemas.topology import Topology


def collect_machine(*, libnccl: str | None = None, torch_version: str | None = None) -> Machine:
    """Return what machine this is, with the GPUs that CUDA programs see. Without a GPU or driver, what is absent stays None.

    ``libnccl`` is an explicit library file (InputError if it does not exist); ``torch_version`` is what the caller
    imported, otherwise the installed version is read from torch's metadata.
    """
    with Nvml() as nvml:
        return machine_record(nvml, libnccl=libnccl, torch_version=torch_version)


def machine_record(nvml: Nvml, *, libnccl: str | None = None, torch_version: str | None = None) -> Machine:
    """Return the machine record through an open NVML session."""
    import psutil

    shm, visible = host.shm_bytes(), visible_gpus(nvml)
    record = Machine(
        hostname_hash=host.hostname_hash(),
        os=host.os_name(),
        kernel=platform.release(),
        python=platform.python_version(),
        cpu_model=host.cpu_model(),
        num_cpus=_num_cpus(),
        memory_bytes=int(psutil.virtual_memory().total),
        shm_free_bytes=shm[1] if shm else None,
        gpus=gpus.gpu_records(nvml, visible),
        num_hidden_gpus=nvml.num_gpus() - len(visible),
        gpu_links=gpus.gpu_links(nvml, visible),
        driver_version=nvml.text("nvmlSystemGetDriverVersion"),
        cuda_driver_version=_cuda_version(nvml.whole("nvmlSystemGetCudaDriverVersion_v2")),
        torch_version=torch_version or installed_version("torch"),
        nccl=_library(libnccl),
        nccl_conf_files=[host.without_home(path) for path in host.nccl_conf_files()],
        inherited_nccl=host.inherited_nccl(),
    )
    return record.model_copy(update={"topology": match_topology(record)})


def match_topology(machine: Machine) -> str | None:
    """Return the name of the topology file with these GPUs, by NVML name and count; None if none matches.

    A file that cannot be read is passed over here: ``nccltune topology list`` names it.
    """
    names = {gpu.name for gpu in machine.gpus}
    if not names:
        return None
    for name, topology in known_topologies():
        if topology.num_gpus == len(machine.gpus) and names <= set(topology.gpu.nvml_names):
            return name
    return None


def known_topologies() -> list[tuple[str, Topology]]:
    """Return every readable topology file by name, in the order of the search path."""
    found = []
    for name in registry.names("topology"):
        with contextlib.suppress(InputError):
            found.append((name, registry.load_topology(name)))
    return found


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution from its metadata, without importing it."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _library(libnccl: str | None) -> LibraryRecord | None:
    try:
        return nccl.find_libnccl(libnccl)
    except MachineError:
        return None


def _num_cpus() -> int:
    """CPUs this process may use: a container's share, not the whole host."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def _cuda_version(code: int | None) -> str | None:
    """Write the driver's CUDA version: 13000 -> ``13.0``."""
    return f"{code // 1000}.{code % 1000 // 10}" if code else None
