"""What a scan needs of this machine: GPUs for its back end and ranks, a torch that can capture, and nobody else at work."""

from nccltune.bench.sums import MAX_EXACT_RANKS
from nccltune.errors import InputError, MachineError
from nccltune.probe.torch_version import is_too_old, oldest
from nccltune.schemas.machine import Machine


def choose_backend(asked: str, num_ranks: int | None, machine: Machine) -> tuple[str, list[str]]:
    """The back end for ``asked``, with notes; raises MachineError where there are too few GPUs for it."""
    num_gpus = len(machine.gpus)
    if asked == "auto" and num_gpus >= 2:
        return "nccl", []
    if asked == "auto" or (asked == "torch" and not num_gpus):
        found = f"{num_gpus} GPU" if num_gpus else "no GPU"
        return "gloo", [
            f"{found} found{_hidden(machine)}: all-reduces are measured with gloo between local CPU processes. They say nothing about NCCL on your GPUs."
        ]
    if asked == "nccl-tests" and num_ranks is not None:
        return asked, []  # the program finds its own GPUs, and says so when there are too few
    if asked in ("nccl", "torch", "nccl-tests") and num_gpus < 2:
        raise MachineError(
            f"back end {asked} needs at least two GPUs",
            f"{num_gpus} found{_hidden(machine)}",
            "run it on the GPU machine, or use --backend gloo to try the tool",
        )
    return asked, []


def count_ranks(asked: int | None, backend: str, machine: Machine) -> int:
    """How many ranks: as asked, or one a GPU; raises InputError or MachineError where they cannot be."""
    own_ranks = backend in ("nccl", "torch")
    available = len(machine.gpus) if own_ranks else MAX_EXACT_RANKS
    ranks = asked or (2 if backend == "gloo" else len(machine.gpus))
    if ranks < 2:
        raise InputError(f"--ranks {ranks}: an all-reduce needs at least two ranks", "", "use --ranks 2 or more")
    if ranks > available and own_ranks:
        raise MachineError(
            f"--ranks {ranks}, but this machine has {available} GPUs{_hidden(machine)}",
            "one rank runs on one GPU",
            f"use --ranks {available}",
        )
    if ranks > MAX_EXACT_RANKS:
        raise InputError(
            f"--ranks {ranks} is above {MAX_EXACT_RANKS}",
            "sums of more ranks are not exact in bfloat16",
            f"use --ranks {MAX_EXACT_RANKS} or fewer",
        )
    return ranks


def check_torch(machine: Machine) -> None:
    """Raise MachineError for a torch whose CUDA graphs cannot be read; where there is none, the ranks say so."""
    version = machine.torch_version
    if version is not None and is_too_old(version):
        raise MachineError(
            f"torch {version} cannot measure NCCL",
            f"torch before {oldest()} does not tell which kernels a CUDA graph holds",
            f"install torch {oldest()} or later, or use --backend nccl-tests",
        )


def busy_notes(machine: Machine, num_ranks: int, force: bool) -> list[str]:
    """Another program on the GPUs spoils every number: refuse, or note it under --force."""
    busy = [g for g in machine.gpus[:num_ranks] if (g.num_processes or 0) > 0]
    if not busy:
        return []
    text = ", ".join(
        f"GPU {g.index}: {g.num_processes} process(es), {(g.used_memory_bytes or 0) / 2**30:.1f} GiB" for g in busy
    )
    if not force:
        raise MachineError(
            "the GPUs are in use",
            text,
            "stop the other programs, or measure all the same with --force (the run is marked)",
        )
    return [f"measured while the GPUs were in use ({text})"]


def _hidden(machine: Machine) -> str:
    return f", and {machine.num_hidden_gpus} hidden by CUDA_VISIBLE_DEVICES" if machine.num_hidden_gpus else ""
