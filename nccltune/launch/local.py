"""Ranks as processes of this machine: argv and a clean environment. Never measures, never imports torch."""

import os
import sys

# What a rank needs to run at all; every NCCL_* variable is given explicitly by command, never inherited.
_DROP_PREFIXES = ("NCCL_", "SLURM_", "OMPI_", "PMI_", "TORCHELASTIC_")
_DROP = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def command(rank: int, reply_fd: int) -> list[str]:
    """Return the argv of one rank."""
    return [sys.executable, "-m", "nccltune.bench.worker", "--rank", str(rank), "--reply-fd", str(reply_fd)]


def environment() -> dict[str, str]:
    """Return the environment of a rank: this process's, without any NCCL_* or launcher variable."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(_DROP_PREFIXES) and k not in _DROP}
    env["PYTHONUNBUFFERED"] = "1"
    # As NVML counts: on a machine with GPUs of several kinds, those that are looked at must be those that are measured.
    env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    # As SGLang sets it: it shapes how launches of several streams queue up.
    env.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    # One thread a rank on a CPU: ranks must not fight for cores while they are timed.
    env.setdefault("OMP_NUM_THREADS", "1")
    # Multicast objects wedge some NVLink fabrics for every process; nothing that is measured needs them.
    env["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    return env


def dropped() -> list[str]:
    """Names of the NCCL_* variables that ranks do not inherit."""
    return sorted(name for name in os.environ if name.startswith("NCCL_"))
