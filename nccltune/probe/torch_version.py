"""Which torch can measure on GPUs. Read from the installed version: nothing here imports torch."""

import re

# The first with torch.cuda.CUDAGraph(keep_graph=True) and raw_cuda_graph(), by which a captured kernel is read (bench.cuda_bench).
OLDEST_TORCH = (2, 8)


def is_too_old(version: str) -> bool:
    """Whether ``version`` (``2.7.1+cu126``) is older than that; a text that is no version is not."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) < OLDEST_TORCH


def oldest() -> str:
    """The oldest version as text."""
    return ".".join(map(str, OLDEST_TORCH))
