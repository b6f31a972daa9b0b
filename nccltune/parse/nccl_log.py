"""NCCL's debug log (NCCL_DEBUG=INFO, subsystems INIT,ENV,TUNING) of versions 2.18 to 2.32, as one record.

The scan reads its own NCCL_DEBUG_FILE with :func:`choices_after`, so that function costs one regular expression.
Line shapes: NVIDIA/nccl src/enqueue.cc, src/init.cc, src/graph/tuning.cc, src/misc/param.cc, src/scheduler/symmetric_sched.cc.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nccltune.knobs import library_part
from nccltune.parse.bounded import bound_lines
from nccltune.parse.nccl_errors import classify_nccl_error
from nccltune.parse.nccl_names import algo_name, proto_name
from nccltune.parse.nccl_rejections import find_rejections
from nccltune.parse.nccl_table import ModelTable, parse_model_table
from nccltune.schemas.measurement import Failure, Rejected

_MAX_WARNINGS = 20
_MAX_LINE = 4096
# 2.20 to 2.23: numbers and a time; 2.24 and later: names and the channels; 2.23 and later: the collective in front.
_CHOICE = re.compile(
    r"NCCL INFO (?:(?P<collective>\w+)(?P<symmetric> \[Symmetric\])?:\s*)?(?P<size>\d+) Bytes -> (?:"
    r"Algo (?P<algo>\w+) proto (?P<proto>\w+)"
    r"(?:\s+time (?P<time>-?[\d.]+(?:e[+-]?\d+)?)|\s+channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\})?"
    r"|Kernel (?P<kernel>\S+) nchannels (?P<nchannels>\d+) nthreads (?P<nthreads>\d+))"
)
_SET = re.compile(r"NCCL INFO (NCCL_[A-Z0-9_]+) set by environment to (.*?)\s*$", re.MULTILINE)
_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)")
_COLL_CHANNELS = re.compile(r"(\d+) coll channels")
_CHANNEL_OF = re.compile(r"NCCL INFO Channel \d+/(\d+) :((?:\s+\d+)+)\s*$", re.MULTILINE)
_NUM_RANKS = re.compile(r"\bn[rR]anks (\d+)")
_VIA = re.compile(r"NCCL INFO (?:Channel|Ring) [^\n]*? via (P2P|SHM|NET|direct shared memory)")
_TRANSPORT = {"P2P": "P2P", "SHM": "SHM", "NET": "NET", "direct shared memory": "SHM"}
_WARN = re.compile(r"NCCL WARN\s+(.*?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LogChoice:
    """What NCCL chose for one collective of one size; None where this version does not print it."""

    collective: str
    size_bytes: int
    algo: str | None
    proto: str | None
    num_channels: int | None = None
    predicted_us: float | None = None
    symmetric_kernel: str | None = None
    num_threads: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields that ``import --json`` promises, and what else this version printed."""
        result: dict[str, Any] = {
            "collective": self.collective or None,
            "size_bytes": self.size_bytes,
            "algo": self.algo,
            "proto": self.proto,
            "channels": self.num_channels,
        }
        extra = {
            "predicted_us": self.predicted_us,
            "symmetric_kernel": self.symmetric_kernel,
            "num_threads": self.num_threads,
        }
        return result | {key: value for key, value in extra.items() if value is not None}


@dataclass(slots=True)
class NcclLog:
    """One NCCL debug log."""

    nccl_version: str | None = None
    settings_in_force: dict[str, str] = field(default_factory=dict)
    echoed: dict[str, str] = field(default_factory=dict)
    """Every variable that this text says was read, those that were refused included."""
    rejected: list[Rejected] = field(default_factory=list)
    num_channels: int | None = None
    """Channels of the communicator for collectives; a small message uses fewer of them."""
    num_ranks: int | None = None
    transports: dict[str, int] = field(default_factory=dict)
    """Connections by transport, over all channels and all ranks that logged; empty where no line tells."""
    choices: list[LogChoice] = field(default_factory=list)
    """Each once, in order of appearance."""
    model_table: ModelTable | None = None
    max_threads: dict[str, dict[str, int]] | None = None
    """Most threads of a block by algorithm and protocol."""
    error: Failure | None = None
    warnings: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``import --json``."""
        return {
            "kind": "nccl-log",
            "nccl_version": self.nccl_version,
            "settings_in_force": self.settings_in_force,
            "settings_rejected": rejections_json(self.rejected),
            "channels": self.num_channels,
            "num_ranks": self.num_ranks,
            "transports": self.transports,
            "choices": [choice.to_json() for choice in self.choices],
            "model_table": self.model_table,
            "max_threads": self.max_threads,
            "error": {"kind": self.error.kind, "message": self.error.message} if self.error else None,
            "warnings": self.warnings,
        }

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the log was understood."""
        return not (
            self.settings_in_force or self.rejected or self.choices or self.model_table or self.error
            or self.num_channels or self.num_ranks or self.nccl_version or self.transports
        )  # fmt: skip


def choices_after(text: str) -> list[LogChoice]:
    """Return every choice in ``text``, in order, repeats included; for a chunk of a log that still grows.

    ``AllReduce: 28672 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..2}`` is Ring, LL, 3 channels. Up to 2.22 the
    line does not name the collective: it is then empty.
    """
    return [_choice(match) for match in _CHOICE.finditer(text)]


def parse_nccl_log(text: str, earlier: Mapping[str, str] | None = None) -> NcclLog:
    """Read a whole log; a text without any NCCL line gives an empty record.

    ``earlier``: what the same library echoed before this text. Variables that it reads once it does not echo again, but a
    later communicator can clamp them too.
    """
    text = bound_lines(text.replace("\r\n", "\n").removeprefix("\ufeff"), _MAX_LINE)
    log = NcclLog()
    log.choices = list(dict.fromkeys(choices_after(text)))
    version = _VERSION.search(text)
    log.nccl_version = version.group(1) if version else None
    log.model_table, log.max_threads, table_warnings = parse_model_table(text)
    log.num_channels, log.num_ranks = _channels(text), _ranks(text)
    log.transports = _transports(text)
    log.echoed, set_warnings = _settings(text)
    requested = {**library_part(dict(earlier or {})), **log.echoed}
    log.rejected = find_rejections(text, requested, log.num_channels, log.max_threads)
    refused = {rejected.variable for rejected in log.rejected}
    log.settings_in_force = {name: value for name, value in log.echoed.items() if name not in refused}
    log.error = classify_nccl_error(text)
    log.warnings = [*table_warnings, *set_warnings, *_choice_warnings(log.choices), *_nccl_warnings(text)]
    return log


def rejections_json(rejected: list[Rejected]) -> dict[str, dict[str, str | None]]:
    """Return rejections by variable, as ``settings_rejected`` of ``import --json`` holds them."""
    return {r.variable: {"requested": r.requested, "in_force": r.in_force, "message": r.message} for r in rejected}


def _choice(match: re.Match[str]) -> LogChoice:
    low, high, time = match["low"], match["high"], match["time"]
    channels = int(high) - int(low) + 1 if low is not None else None
    if match["nchannels"] is not None:
        channels = int(match["nchannels"])
    return LogChoice(
        collective=match["collective"] or "",
        size_bytes=int(match["size"]),
        algo=algo_name(match["algo"]) if match["algo"] else None,
        proto=proto_name(match["proto"]) if match["proto"] else None,
        num_channels=channels,
        predicted_us=float(time) if time is not None else None,
        symmetric_kernel=match["kernel"],
        num_threads=int(match["nthreads"]) if match["nthreads"] else None,
    )


def _settings(text: str) -> tuple[dict[str, str], list[str]]:
    """Variables as NCCL echoes them; numbers come with a full stop behind them."""
    found: dict[str, str] = {}
    warnings: list[str] = []
    for name, echoed in _SET.findall(text):
        value = echoed[:-1] if re.fullmatch(r"-?\d+\.", echoed) else echoed
        if found.setdefault(name, value) != value:
            warnings.append(f"{name} was read as {found[name]} and as {value}: ranks or communicators differ")
    return found, list(dict.fromkeys(warnings))


def _transports(text: str) -> dict[str, int]:
    """Count connections; a log of the subsystem TUNING alone has none, which is not zero."""
    used = [_TRANSPORT[match.group(1)] for match in _VIA.finditer(text)]
    return {name: used.count(name) for name in ("P2P", "SHM", "NET")} if used else {}


def _channels(text: str) -> int | None:
    printed = _COLL_CHANNELS.findall(text) or [match[0] for match in _CHANNEL_OF.findall(text)]
    return int(printed[-1]) if printed else None


def _ranks(text: str) -> int | None:
    """Ranks of the largest communicator: printed, or counted in a ring (``Channel 00/48 : 0 1 2 3`` has 4)."""
    printed = [int(number) for number in _NUM_RANKS.findall(text)]
    if not printed:
        printed = [len(ring.split()) for _, ring in _CHANNEL_OF.findall(text)]
    return max(printed, default=None)


def _choice_warnings(choices: list[LogChoice]) -> list[str]:
    seen: dict[tuple[str, int], LogChoice] = {}
    differing: list[str] = []
    for choice in choices:
        first = seen.setdefault((choice.collective, choice.size_bytes), choice)
        if first is not choice:
            differing.append(f"{choice.collective or 'collective'} of {choice.size_bytes} bytes")
    if not differing:
        return []
    names = ", ".join(dict.fromkeys(differing))
    return [f"more than one choice for {names}: several communicators or grouped calls; all are listed"]


def _nccl_warnings(text: str) -> list[str]:
    found = list(dict.fromkeys(match.strip() for match in _WARN.findall(text) if match.strip()))
    extra = [f"{len(found) - _MAX_WARNINGS} more NCCL warnings"] if len(found) > _MAX_WARNINGS else []
    return [f"NCCL: {line}" for line in found[:_MAX_WARNINGS]] + extra
