"""NCCL settings as NCCL spells them: what each one does, how far a change reaches, and which values NCCL would refuse.

Scopes: ``communicator`` variables are read at every communicator init; ``library`` variables are read once per loaded
copy of libnccl and are silently ignored by later communicators of that copy (docs/knobs.md has the evidence).
"""

import difflib
import re
from dataclasses import dataclass
from typing import Literal

from nccltune.errors import InputError
from nccltune.schemas.measurement import Rejected
from nccltune.schemas.setting import BASE, Setting, parse_setting

Scope = Literal["communicator", "library", "process"]
Version = tuple[int, int, int]

ALGOS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOS = ("LL", "LL128", "Simple")
P2P_LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")

# What SGLang exports by itself where the user has not (engine.py, _set_envs_and_config): its baseline is the user's
# baseline. NCCL's own defaults are cuMem on and NVLS where the hardware has it.
BASES: dict[str, dict[str, str]] = {
    "sglang": {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"},
    "nccl": {},
}

# The hand-tuned set of the machine that started the project (8x RTX PRO 6000 on PCIe, Kimi-K2.5).
SEED = {
    "NCCL_PROTO": "LL",
    "NCCL_ALGO": "Ring",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_NTHREADS": "512",
}
NAMED: dict[str, Setting] = {"base": BASE, "seed": Setting(name="seed", env=SEED)}


@dataclass(frozen=True, slots=True)
class Knob:
    """One NCCL variable."""

    name: str
    scope: Scope
    what: str
    protos: tuple[str, ...] = PROTOS
    """Protocols it can act on for an all-reduce."""


_LIBRARY = (
    ("NCCL_MIN_NCHANNELS", "least channels of a communicator"),
    ("NCCL_MAX_NCHANNELS", "most channels of a communicator"),
    ("NCCL_MIN_CTAS", "least thread blocks of a communicator"),
    ("NCCL_MAX_CTAS", "most thread blocks of a communicator"),
    ("NCCL_NTHREADS", "threads of a Ring or Tree block, 64 to 512, a multiple of 32"),
    ("NCCL_LL128_NTHREADS", "threads of an LL128 block, 160 to 640"),
    ("NCCL_BUFFSIZE", "buffer of the Simple protocol, bytes"),
    ("NCCL_LL_BUFFSIZE", "buffer of the LL protocol, bytes"),
    ("NCCL_LL128_BUFFSIZE", "buffer of the LL128 protocol, bytes"),
    ("NCCL_P2P_LEVEL", "how far apart two GPUs may be and still use peer access"),
    ("NCCL_P2P_DISABLE", "no peer access"),
    ("NCCL_P2P_DIRECT_DISABLE", "no direct buffer access between processes' GPUs"),
    ("NCCL_SHM_DISABLE", "no host shared memory"),
    ("NCCL_NVLS_ENABLE", "NVLink SHARP"),
    ("NCCL_CUMEM_ENABLE", "cuMem allocations"),
    ("NCCL_CUMEM_HOST_ENABLE", "cuMem host allocations"),
    ("NCCL_CGA_CLUSTER_SIZE", "thread-block cluster size"),
    ("NCCL_NVLS_NCHANNELS", "channels of NVLS"),
    ("NCCL_WIN_ENABLE", "window registration"),
    ("NCCL_GRAPH_REGISTER", "buffer registration under CUDA graphs"),
    ("NCCL_GRAPH_MIXING_SUPPORT", "several captured graphs of one communicator in flight"),
    ("NCCL_NCHANNELS_PER_NET_PEER", "channels per network peer"),
    ("NCCL_LAUNCH_ORDER_IMPLICIT", "implicit launch order"),
    ("NCCL_PXN_DISABLE", "no relay through another GPU's NIC"),
    ("NCCL_IGNORE_CPU_AFFINITY", "ignore the process's CPU affinity"),
)  # fmt: skip
_COMMUNICATOR = (
    ("NCCL_ALGO", "allowed algorithms"),
    ("NCCL_PROTO", "allowed protocols"),
    ("NCCL_THREAD_THRESHOLDS", "bytes per thread below which channels are dropped"),
    ("NCCL_GRAPH_FILE", "search result to use, XML"),
    ("NCCL_TOPO_FILE", "topology to use, XML"),
    ("NCCL_NET", "network plugin"),
    ("NCCL_COLLNET_ENABLE", "CollNet"),
)
_OTHER = (
    "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_CONF_FILE", "NCCL_TUNER_PLUGIN", "NCCL_TUNER_CONFIG_FILE",
    "NCCL_NET_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_ENV_PLUGIN", "NCCL_NO_CACHE", "NCCL_SYM_KERNEL", "NCCL_CTA_POLICY", "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_FAMILY", "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX",
    "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", "NCCL_IB_SL", "NCCL_IB_TC", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_SPLIT_DATA_ON_QPS",
    "NCCL_IB_PCI_RELAXED_ORDERING", "NCCL_IB_ADAPTIVE_ROUTING", "NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_CROSS_NIC", "NCCL_COMM_ID",
    "NCCL_LAUNCH_MODE", "NCCL_COMM_BLOCKING", "NCCL_CHECK_POINTERS", "NCCL_CHECKS_DISABLE", "NCCL_NVB_DISABLE", "NCCL_DMABUF_ENABLE",
    "NCCL_P2P_NET_CHUNKSIZE", "NCCL_SET_THREAD_NAME", "NCCL_SET_STACK_SIZE", "NCCL_RAS_ENABLE", "NCCL_RAS_ADDR", "NCCL_TOPO_DUMP_FILE",
    "NCCL_GRAPH_DUMP_FILE", "NCCL_RUNTIME_CONNECT", "NCCL_MNNVL_ENABLE", "NCCL_HOSTID", "NCCL_SINGLE_PROC_MEM_REG_ENABLE",
    "NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_ENABLE_DMABUF_SUPPORT", "NCCL_NVLS_CHUNKSIZE", "NCCL_CHUNK_SIZE", "NCCL_CHECK_MODE",
)  # fmt: skip
_PROTO_OF = {
    "NCCL_BUFFSIZE": ("Simple",),
    "NCCL_LL_BUFFSIZE": ("LL",),
    "NCCL_LL128_BUFFSIZE": ("LL128",),
    "NCCL_LL128_NTHREADS": ("LL128",),
    "NCCL_NTHREADS": ("LL", "Simple"),
}

_PAIRS = (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"))

KNOBS: dict[str, Knob] = {
    **{name: Knob(name, "library", what, _PROTO_OF.get(name, PROTOS)) for name, what in _LIBRARY},
    **{name: Knob(name, "communicator", what) for name, what in _COMMUNICATOR},
    **{name: Knob(name, "process", "") for name in _OTHER},
}


def library_part(env: dict[str, str]) -> dict[str, str]:
    """Variables of ``env`` that need a fresh copy of libnccl to take effect; unknown ones are taken as such."""
    return {k: v for k, v in env.items() if k not in KNOBS or KNOBS[k].scope != "communicator"}


def decisions(env: dict[str, str]) -> list[tuple[str, ...]]:
    """Variables of ``env`` by what stands or falls together: a fixed channel count (MIN = MAX) is one decision."""
    pairs = [pair for pair in _PAIRS if pair[0] in env and env[pair[0]] == env.get(pair[1])]
    paired = {name for pair in pairs for name in pair}
    return [*pairs, *((name,) for name in env if name not in paired)]


def find_setting(text: str, known: dict[str, Setting] | None = None) -> Setting:
    """Find a setting by name (``base``, ``seed``, a run's) or read it from ``NCCL_X=a;NCCL_Y=b``."""
    names = {**NAMED, **(known or {})}
    if text in names:
        return names[text]
    if "=" in text:
        return parse_setting(text)
    close = difflib.get_close_matches(text, names, n=3, cutoff=0.5)
    raise InputError(
        f"no setting is called '{text}'",
        f"known: {', '.join(names)}" if len(names) <= 40 else f"{len(names)} settings are known",
        f"did you mean {' or '.join(close)}?" if close else "give a name, or NCCL_PROTO=LL;NCCL_ALGO=Ring",
    )


def nearest(name: str) -> str | None:
    """Nearest known variable name, for a misspelt one."""
    close = difflib.get_close_matches(name, KNOBS, n=1, cutoff=0.75)
    return close[0] if close else None


# Read by strtoll: what follows the digits is lost without a word (NVIDIA/nccl src/misc/param.cc, ncclLoadParam).
INTEGERS = frozenset(name for name, _ in _LIBRARY) - {"NCCL_P2P_LEVEL"}


def read_integer(text: str) -> int:
    """Read a number as NCCL does: C's strtoll with base 0. ``4M`` is 4, ``0x10`` is 16, ``010`` is 8, ``yes`` is 0."""
    match = re.match(r"\s*([-+]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", text)
    if match is None:
        return 0
    digits = match.group(2)
    base = 16 if digits[:2].lower() == "0x" else 8 if digits[0] == "0" else 10
    return int(digits, base) * (-1 if match.group(1) == "-" else 1)


def _misread(env: dict[str, str]) -> list[Rejected]:
    """Numbers that NCCL reads as another number than the one written."""
    found = []
    for name in sorted(INTEGERS & set(env)):
        value, number = env[name], read_integer(env[name])
        if value.strip() not in (str(number), f"+{number}") and not re.fullmatch(r"0[xX][0-9a-fA-F]+", value.strip()):
            message = f"NCCL reads whole numbers in bytes or counts only: it takes this for {number}"
            found.append(Rejected(variable=name, requested=value, in_force=str(number), message=message))
    return found


def refusals(env: dict[str, str]) -> list[Rejected]:
    """Values that NCCL would refuse, clamp or misread, known before anything runs (nccl.md A3, A4)."""
    found: list[Rejected] = [r for r in _misread(env) if r.variable not in ("NCCL_NTHREADS", "NCCL_LL128_NTHREADS")]
    for name, low, high in (("NCCL_NTHREADS", 64, 512), ("NCCL_LL128_NTHREADS", 160, 640)):
        value = env.get(name)
        if value is None:
            continue
        number = int(value) if value.isdigit() else None
        if number is None or number % 32:
            found.append(
                Rejected(
                    variable=name,
                    requested=value,
                    in_force=str(high),
                    message="not a multiple of 32: NCCL uses its maximum",
                )
            )
        elif not low <= number <= high:
            found.append(
                Rejected(
                    variable=name,
                    requested=value,
                    in_force=str(min(max(number, low), high)),
                    message=f"outside {low}..{high}: NCCL clamps it",
                )
            )
    for name, low in (("NCCL_MIN_NCHANNELS", 0), ("NCCL_MAX_NCHANNELS", 1)):
        if name in env and read_integer(env[name]) < low:
            message = f"below {low}: NCCL takes it for {low}"
            found.append(Rejected(variable=name, requested=env[name], in_force=str(low), message=message))
    for name in ("NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE"):
        # -2 is how NCCL itself writes "not set" (NCCL_PARAM(BuffSize, "BUFFSIZE", -2)).
        if name in env and read_integer(env[name]) <= 0 and env[name] != "-2":
            found.append(Rejected(variable=name, requested=env[name], message="a buffer has a size above 0 bytes"))
    level = env.get("NCCL_P2P_LEVEL")
    if level is not None and level.upper() not in P2P_LEVELS and level not in "012345":
        found.append(
            Rejected(
                variable="NCCL_P2P_LEVEL", requested=level, message="unknown level: NCCL ignores it without a word"
            )
        )
    return found
