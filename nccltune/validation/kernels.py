"""Which collective a GPU kernel is, by its name: NCCL's, an engine's own, FlashInfer's fusion, mscclpp, symmetric memory.

NCCL compiles one all-reduce kernel for Tree and one for all other algorithms, both for LL, and enters the other
protocols through them: a name tells Tree from not Tree, and never the protocol (its device table, src/device).
"""

import re
from dataclasses import dataclass

from nccltune.schemas.trace import Collective, Method

_COLLECTIVES: tuple[tuple[str, Collective], ...] = (
    (r"all_?reduce", "all_reduce"),
    (r"all_?gather", "all_gather"),
    (r"reduce_?scatter", "reduce_scatter"),
    (r"broadcast", "broadcast"),
)
# Before NCCL's own: NCCL's symmetric kernels also start with nccl.
_NCCL_SYMMETRIC = re.compile(r"ncclSymk?(?:Dev)?Kernel|ncclSymk?DevKernel", re.IGNORECASE)
_NCCL = re.compile(r"nccl(?:Dev)?Kernel", re.IGNORECASE)
# trtllm_allreduce_fusion (SM90) and the mnnvl kernels of FlashInfer; TensorRT-LLM's share the names.
_FUSION = re.compile(r"trtllm_\w*allreduce|allreduce_fusion_kernel|all_?reduce_?fusion", re.IGNORECASE)
_MSCCLPP = re.compile(r"mscclpp|allreduce_LL_\dnode", re.IGNORECASE)
_SYMM_MEM = re.compile(
    r"multimem_(?:one_shot_)?all_reduce|(?:one|two)_shot_all_reduce_(?:out_)?kernel|symm_?mem\w*all_?reduce",
    re.IGNORECASE,
)
_QUICK = re.compile(r"quick_?(?:all_?)?reduce", re.IGNORECASE)
_CUSTOM = re.compile(
    r"cross_device_reduce|custom_all_?reduce|all_reduce_(?:one|two|1|2)_?shot_(?:push_|pull_)?kernel|"
    r"(?:one|two)_?shot_all_?reduce|allreduce_(?:one|two)_?shot|all_?reduce_?kernel",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class KernelKind:
    """A collective kernel."""

    collective: Collective
    method: Method
    algo: str | None = None


def classify(name: str) -> KernelKind | None:
    """Return what collective a kernel is; None for compute and memory kernels."""
    if _NCCL_SYMMETRIC.search(name):
        return KernelKind(_collective(name), "nccl-symmetric")
    if _NCCL.search(name):
        collective = _collective(name)
        algo = ("Tree" if "_TREE_" in name else "Ring") if collective == "all_reduce" else None
        return KernelKind(collective, "nccl", algo)
    methods: tuple[tuple[re.Pattern[str], Method], ...] = (
        (_FUSION, "flashinfer-fusion"), (_MSCCLPP, "mscclpp"), (_SYMM_MEM, "torch-symm-mem"), (_QUICK, "quick-reduce"), (_CUSTOM, "custom"),
    )  # fmt: skip
    for pattern, method in methods:
        if pattern.search(name):
            return KernelKind("all_reduce", method)
    return None


def _collective(name: str) -> Collective:
    return next((kind for pattern, kind in _COLLECTIVES if re.search(pattern, name, re.IGNORECASE)), "other")
