"""NCCL's own cost model of an all-reduce on one node: what it would expect before anything is measured. Pure numpy.

Source: NVIDIA/nccl ``src/graph/tuning.cc``, 2.30 (``time = latency + bytes / bandwidth``; latency and bandwidth tables).
Left out, because they need the channel count of a machine: the per-channel bandwidth caps and the size-dependent
tree correction.
"""

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from nccltune.costmodel.estimate import Floats

# Microseconds: a fixed part, and one per dependent step of the ring (or of the chain that a tree is on one node).
BASE_US = {
    "Tree": {"LL": 6.8, "LL128": 14.0, "Simple": 8.4},
    "Ring": {"LL": 6.6, "LL128": 14.0, "Simple": 8.4},
}
HOP_US = {
    "nvlink": {"Tree": {"LL": 0.6, "LL128": 1.25, "Simple": 4.0}, "Ring": {"LL": 0.6, "LL128": 1.9, "Simple": 3.4}},
    "pcie": {"Tree": {"LL": 1.0, "LL128": 1.9, "Simple": 4.0}, "Ring": {"LL": 1.0, "LL128": 2.5, "Simple": 5.7}},
}
NVLS_US = 25.0
# Share of the link bandwidth a protocol reaches, before the volume of the algorithm is counted.
PROTO_SHARE = {
    "Ring": {"LL": 0.5, "LL128": 0.92, "Simple": 1.0},
    "Tree": {"LL": 1 / 3.8, "LL128": 0.92 * 7 / 9, "Simple": 0.92},
}
# Most bytes per second of LL on one node, by major compute capability (llMaxBws; 12 is taken as Blackwell, 10).
LL_MAX_BYTES_PER_S = {7: 39.0e9, 8: 87.7e9, 9: 141.0e9, 10: 282.0e9}
# Share of the link bandwidth that in-switch reduction reaches (nvlsEfficiency); older GPUs have none.
NVLS_SHARE = {9: 0.85, 10: 0.74}
MIN_NVLS_RANKS = 4

_TOKENS = re.compile(r"[A-Za-z0-9]+")


def num_hops(num_ranks: int) -> int:
    """Dependent steps of a ring all-reduce, 2(n-1): 14 on 8 ranks. A one-node tree is a chain of as many."""
    return 2 * (num_ranks - 1)


def ring_volume(num_ranks: int) -> float:
    """Bytes each rank sends per byte of message, 2(n-1)/n: 1.75 on 8 ranks."""
    return 2 * (num_ranks - 1) / num_ranks


def generation(compute_capability: str) -> int:
    """Major compute capability as NCCL's tables know it: 7, 8, 9 or 10; what cannot be read counts as 9."""
    match = re.match(r"\D*(\d+)", compute_capability)
    major = int(match.group(1)) if match else 9
    major = major // 10 if major >= 70 else major  # "90" and "sm_90" as well as "9.0"
    return min(max(major, 7), 10)


def allreduce_us(
    size_bytes: ArrayLike,
    algo: str,
    proto: str,
    num_ranks: int,
    links_kind: str,
    major: int,
    bandwidth_bytes_per_s: float,
) -> Floats:
    """Microseconds NCCL would expect: Ring LL, 8 ranks, NVLink, small message: 6.6 + 14 x 0.6 = 15.0."""
    size = np.asarray(size_bytes, dtype=float)
    if algo == "NVLS":
        return NVLS_US + size / (bandwidth_bytes_per_s * NVLS_SHARE[major]) * 1e6
    bandwidth = bandwidth_bytes_per_s * PROTO_SHARE[algo][proto]
    if proto == "LL":
        bandwidth = min(bandwidth, LL_MAX_BYTES_PER_S[major])
    volume = ring_volume(num_ranks) if algo == "Ring" else 2.0
    latency = BASE_US[algo][proto] + num_hops(num_ranks) * HOP_US[links_kind][algo][proto]
    return latency + size * volume / bandwidth * 1e6


def candidates(env: Mapping[str, str], links_kind: str, major: int, num_ranks: int) -> list[tuple[str, str]]:
    """(algorithm, protocol) pairs that NCCL may choose for an all-reduce under ``env``; empty if none is left.

    LL128 is off on PCIe unless named; NVLS needs NVLink, Hopper or later and NCCL_NVLS_ENABLE not 0.
    """
    protos = _allowed(env.get("NCCL_PROTO", ""), ("LL", "LL128", "Simple"))
    if links_kind == "pcie" and "NCCL_PROTO" not in env:
        protos = [proto for proto in protos if proto != "LL128"]
    algos = _allowed(env.get("NCCL_ALGO", ""), ("Ring", "Tree", "NVLS"))
    pairs = [(algo, proto) for algo in algos if algo != "NVLS" for proto in protos]
    if "NVLS" in algos and "Simple" in protos and nvls_possible(env, links_kind, major, num_ranks):
        pairs.append(("NVLS", "Simple"))
    return pairs


def nvls_possible(env: Mapping[str, str], links_kind: str, major: int, num_ranks: int) -> bool:
    """Say whether in-switch reduction can be in play at all."""
    off = env.get("NCCL_NVLS_ENABLE") == "0" or "NVLS" not in _allowed(
        env.get("NCCL_ALGO", ""), ("Ring", "Tree", "NVLS")
    )
    return links_kind == "nvlink" and major in NVLS_SHARE and num_ranks >= MIN_NVLS_RANKS and not off


def _allowed(value: str, known: tuple[str, ...]) -> list[str]:
    """Apply NCCL's ``list[;func:list]`` grammar for AllReduce; ``^`` inverts a list. Empty value: everything."""
    wanted = ""
    for entry in value.split(";"):
        function, colon, names = entry.rpartition(":")
        if not colon or function.strip().lower() == "allreduce":
            wanted = names
    if not wanted.strip():
        return list(known)
    tokens = {token.lower() for token in _TOKENS.findall(wanted)}
    inverted = wanted.strip().startswith("^")
    return [name for name in known if (name.lower() in tokens) != inverted]
