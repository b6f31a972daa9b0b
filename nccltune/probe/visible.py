"""Which GPUs CUDA programs started from here see: CUDA_VISIBLE_DEVICES, read as CUDA reads it, in NVML's numbers."""

import os
import re
from collections.abc import Sequence

from nccltune.probe.nvml import Nvml

VARIABLE = "CUDA_VISIBLE_DEVICES"
_UUID = "GPU-"


def visible_gpus(nvml: Nvml) -> list[int]:
    """Return NVML's number of each visible GPU; its place in the list is CUDA's number, which the ranks are given."""
    text = os.environ.get(VARIABLE)
    if text is None:
        return list(range(nvml.num_gpus()))
    uuids = [nvml.text("nvmlDeviceGetUUID", nvml.handle(index)) or "" for index in range(nvml.num_gpus())]
    return read_visible(text, uuids)


def read_visible(text: str, uuids: Sequence[str]) -> list[int]:
    """Read a value of CUDA_VISIBLE_DEVICES; ``uuids`` are those of all GPUs, in NVML's order.

    The list ends at its first invalid entry, entries are of one form, and a GPU named twice makes it empty. A MIG instance
    is no GPU here: NCCL has no peer access between instances, and CUDA shows one of them at most.
    """
    found: list[int] = []
    for entry in text.split(","):
        if entry.strip().startswith(_UUID) != text.strip().startswith(_UUID):
            break
        index = _index(entry.strip(), uuids)
        if index is None:
            break
        if index in found:
            return []
        found.append(index)
    return found


def _index(entry: str, uuids: Sequence[str]) -> int | None:
    """One entry: the start of one GPU's UUID, or a number with whatever behind it (``1gpu`` is 1)."""
    if entry.startswith(_UUID):
        meant = [index for index, uuid in enumerate(uuids) if uuid.startswith(entry)]
        return meant[0] if len(meant) == 1 else None
    number = re.match(r"\+?(\d+)", entry)
    return int(number[1]) if number and int(number[1]) < len(uuids) else None
