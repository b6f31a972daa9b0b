"""Settings that NCCL read and then refused or clamped, in NCCL's words. What it refuses must never be credited."""

import re
from typing import Final

from nccltune.knobs import refusals
from nccltune.schemas.measurement import Rejected

_MESSAGE = re.compile(r"NCCL (?:WARN|INFO)\s+(.*?)\s*$", re.MULTILINE)
_HINT = re.compile(r"NCCL_[A-Z0-9_]+|User asked for|(?:min|max)CTAs|cgaClusterSize", re.IGNORECASE)
_VARIABLE = re.compile(r"NCCL_[A-Z0-9_]+")
_REFUSED = re.compile(
    r"\bignor|\binvalid\b|\blimiting\b|\blimited\b|\bmust be\b|too (?:big|large|small|high|low)|\bclamp|unrecogni[sz]ed"
    r"|\bunknown\b|not supported|unsupported|setting it to|set it to|\bsmaller than\b|\blarger than\b|out of range"
    r"|using (?:the )?default|\bdisabling\b",
    re.IGNORECASE,
)
_ECHO = re.compile(r"^NCCL_[A-Z0-9_]+ set by environment to ")
_PLACEHOLDER: Final = re.compile(r"Invalid value (\S+) for (NCCL_[A-Z0-9_]+), using default (-?\d+)", re.IGNORECASE)
_INVALID: Final = re.compile(r"Invalid (NCCL_[A-Z0-9_]+) (-?\d+) \((.*?)\)", re.IGNORECASE)
_USER_ASKED: Final = re.compile(
    r"User asked for a (minimum|maximum) of (-?\d+) channels, (?:limiting|setting it) to (\d+)"
)
_CTAS: Final = re.compile(r"(min|max)CTAs (-?\d+) is larger than .*?set (?:it|both) to (\d+)", re.IGNORECASE)
_LIMIT: Final = re.compile(
    r"(?:limiting|setting|set)\s+(?:\w+\s+)?to (\d+)|using (?:the )?default (\S+?)\.?$", re.IGNORECASE
)


def find_rejections(
    text: str,
    requested: dict[str, str],
    num_channels: int | None = None,
    max_threads: dict[str, dict[str, int]] | None = None,
) -> list[Rejected]:
    """Return one rejection per variable: refused in words first, then clamped without a word.

    ``requested`` is what NCCL echoed, now or earlier; ``num_channels`` and ``max_threads`` are what the same log shows in force.
    """
    found: dict[str, Rejected] = {}
    for message in dict.fromkeys(_MESSAGE.findall(text)):
        if not _HINT.search(message) or _ECHO.match(message) or not _REFUSED.search(message):
            continue
        for rejected in _read(message, requested):
            found.setdefault(rejected.variable, rejected)
    for rejected in (*_channel_clamps(requested, num_channels), *_thread_clamps(requested, max_threads)):
        found.setdefault(rejected.variable, rejected)
    return [_completed(rejected, num_channels, max_threads) for rejected in found.values()]


def _read(message: str, requested: dict[str, str]) -> list[Rejected]:
    """Variables that one message refuses. A variable that nobody set is not refused."""
    if match := _PLACEHOLDER.search(message):
        return [Rejected(variable=match[2], requested=match[1], in_force=match[3], message=message)]
    if match := _INVALID.search(message):
        return [Rejected(variable=match[1], requested=match[2], message=message)]
    if match := _USER_ASKED.search(message):
        variable = "NCCL_MIN_NCHANNELS" if match[1] == "minimum" else "NCCL_MAX_NCHANNELS"
        return [Rejected(variable=variable, requested=match[2], in_force=match[3], message=message)]
    if match := _CTAS.search(message):
        variable = f"NCCL_{match[1].upper()}_CTAS"
        return [Rejected(variable=variable, requested=match[2], in_force=match[3], message=message)]
    names = list(dict.fromkeys(_VARIABLE.findall(message)))
    limit = _LIMIT.search(message)
    in_force = (limit[1] or limit[2]) if limit else None
    return [
        Rejected(variable=name, requested=requested.get(name, ""), in_force=in_force, message=message)
        for name in names
        if name in requested or "set by environment" in message
    ]


def _channel_clamps(requested: dict[str, str], num_channels: int | None) -> list[Rejected]:
    """The channel count in the log against the bounds asked for."""
    if num_channels is None:
        return []
    result = []
    for names, fails in (
        (("NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS"), lambda asked: num_channels < asked),
        (("NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS"), lambda asked: num_channels > asked),
    ):
        for name in names:
            value = requested.get(name, "")
            if value.isdigit() and fails(int(value)):
                message = f"{num_channels} coll channels, though {name} asked for {value}"
                result.append(Rejected(variable=name, requested=value, in_force=str(num_channels), message=message))
    return result


def _thread_clamps(requested: dict[str, str], max_threads: dict[str, dict[str, int]] | None) -> list[Rejected]:
    """The thread counts that NCCL printed against those asked for (a cache of an earlier value keeps them unchanged)."""
    result = []
    for name, proto in (("NCCL_NTHREADS", "LL"), ("NCCL_LL128_NTHREADS", "LL128")):
        value, shown = requested.get(name, ""), (max_threads or {}).get("Ring", {}).get(proto)
        if value.isdigit() and shown and shown != int(value):
            message = f"Max NThreads {shown} for Ring {proto}, though {name} asked for {value}"
            result.append(Rejected(variable=name, requested=value, in_force=str(shown), message=message))
    return result


def _completed(rejected: Rejected, num_channels: int | None, max_threads: dict[str, dict[str, int]] | None) -> Rejected:
    """Fill what is in force instead: from the log where it shows, otherwise from NCCL's documented rule."""
    if rejected.in_force is not None:
        return rejected
    name = rejected.variable
    shown: int | None = None
    if name.endswith("NCHANNELS"):
        shown = num_channels
    elif name.endswith("NTHREADS"):
        shown = (max_threads or {}).get("Ring", {}).get("LL128" if "LL128" in name else "LL")
    if shown is None and rejected.requested:
        known = refusals({name: rejected.requested})
        return rejected.model_copy(update={"in_force": known[0].in_force}) if known else rejected
    return rejected.model_copy(update={"in_force": str(shown)}) if shown is not None else rejected
