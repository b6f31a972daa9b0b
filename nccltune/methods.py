"""All-reduces that an engine can use instead of NCCL's tuned ones: names, labels, and how SGLang comes to use them.

A scan measures them beside its settings (bench.beside), the fit keeps them apart (costmodel.beside). They are no
settings: no NCCL variable makes an engine use one. SGLang's flags are those of 0.5.14 (docs/beside.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

NCCL = "nccl"
"""The method of every setting."""

_PEER_ACCESS_OFF = (("NCCL_P2P_DISABLE", ("1",)), ("NCCL_P2P_LEVEL", ("LOC", "0")))


@dataclass(frozen=True, slots=True)
class Method:
    """One all-reduce beside NCCL's tuned ones."""

    name: str
    label: str
    used_by: str
    """How SGLang comes to use it."""
    env: Mapping[str, str] = field(default_factory=dict)
    """NCCL variables on top of the base; a method with any has its own copy of libnccl."""


METHODS = (
    # NVLS stays off: in-switch reduction by multicast is another kernel, and not every fabric offers it.
    Method(
        "nccl-windows",
        "NCCL with registered windows",
        "--enable-symm-mem",
        {"NCCL_CUMEM_ENABLE": "1", "NCCL_NVLS_ENABLE": "0"},
    ),
    Method("symm-mem-one-shot", "torch symmetric memory, one-shot", "not used by itself"),
    Method(
        "symm-mem-two-shot", "torch symmetric memory, two-shot", "--enable-torch-symm-mem, where multicast is available"
    ),
    Method("sglang-custom-v2", "SGLang custom all-reduce v2", "default where all GPUs are joined by NVLink"),
    Method(
        "sglang-custom-v1", "SGLang custom all-reduce v1", "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2=0, or two PCIe GPUs"
    ),
)
LABELS = {method.name: method.label for method in METHODS}


def peer_access_off(base_env: Mapping[str, str]) -> str:
    """Why a base leaves these methods out, empty when it does not: all of them write to the memory of other GPUs.

    A base without peer access stands for a machine without it, and there they do not exist.
    """
    for name, values in _PEER_ACCESS_OFF:
        if base_env.get(name, "").upper() in values:
            return f"the base switches peer access off ({name}={base_env[name]})"
    return ""
