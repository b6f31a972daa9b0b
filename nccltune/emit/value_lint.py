"""Judge NCCL variables whatever file they came from: names, values, grammar by version, and combinations that do nothing."""

import difflib

from nccltune.algo_lists import TOKENS, read
from nccltune.emit.findings import Finding, Reading
from nccltune.emit.grammar import problems
from nccltune.knobs import KNOBS, Version, nearest, read_integer, refusals

_MAX_CHANNELS_BEFORE_225, _MAX_CHANNELS = 32, 64
_ORDERED = (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"))
# Renamed long ago; NCCL still reads them (src/graph/connect.cc).
_OLD_NAMES = {"NCCL_MIN_NRINGS": "NCCL_MIN_NCHANNELS", "NCCL_MAX_NRINGS": "NCCL_MAX_NCHANNELS"}


def judge(reading: Reading, version: Version | None) -> list[Finding]:
    """Return the findings on every NCCL variable that the file sets."""
    values = reading.values()
    found: list[Finding] = []
    for name, value in values.items():
        found += _name(name, reading.line_of(name))
        if name in TOKENS and value:
            found += problems(name, value, version, reading.line_of(name))
        if name.startswith("NCCL_") and not value.strip():
            found.append(
                Finding(
                    "problem",
                    "empty",
                    f"{name} is empty: NCCL takes it as unset",
                    "remove it or give it a value",
                    reading.line_of(name),
                    name,
                )
            )
    known = {name: value for name, value in values.items() if name in KNOBS and value.strip()}
    for refused in refusals(known):
        line = reading.line_of(refused.variable)
        used = (
            f"; in force: {refused.in_force}"
            if refused.in_force is not None and refused.in_force not in refused.message
            else ""
        )
        found.append(
            Finding(
                "problem",
                "value",
                f"{refused.variable}={refused.requested}: {refused.message}{used}",
                "correct the value",
                line,
                refused.variable,
            )
        )
    found += _channels(known, reading, version)
    found += _powerless(known, reading)
    return found


def _name(name: str, line: int | None) -> list[Finding]:
    if name in KNOBS:
        return []
    if name == "Environment":
        text = (
            "Environment= is a line of a systemd unit, not of a file that it reads: no variable of it is looked at here"
        )
        return [
            Finding(
                "problem", "unit-line", text, "check a file for EnvironmentFile=, with NAME=value lines", line, name
            )
        ]
    if name in _OLD_NAMES:
        return [
            Finding(
                "warning",
                "old-name",
                f"{name} is the old name of {_OLD_NAMES[name]}",
                f"write {_OLD_NAMES[name]}",
                line,
                name,
            )
        ]
    close = nearest(name) or next(iter(difflib.get_close_matches(name.upper(), KNOBS, n=1, cutoff=0.85)), None)
    if close and (name.startswith("NCCL_") or name.upper().startswith("NCCL") or _is_slip(name, close)):
        return [
            Finding(
                "problem",
                "unknown-variable",
                f"{name} is no NCCL variable: it has no effect",
                f"did you mean {close}?",
                line,
                name,
            )
        ]
    if name.startswith("NCCL_"):
        return [
            Finding(
                "warning",
                "unknown-variable",
                f"{name} is not known to nccltune",
                "check it against NCCL's documentation",
                line,
                name,
            )
        ]
    return []


def _is_slip(name: str, close: str) -> bool:
    """A variable of another program is none of our business, unless it is one slip away from one of NCCL's."""
    return difflib.SequenceMatcher(None, name.upper(), close).ratio() >= 0.9


def _channels(env: dict[str, str], reading: Reading, version: Version | None) -> list[Finding]:
    found = []
    for low, high in _ORDERED:
        if low in env and high in env and read_integer(env[low]) > read_integer(env[high]):
            found.append(Finding("problem", "min-above-max", f"{low}={env[low]} is above {high}={env[high]}: they cannot both hold",
                                 "make them equal, or the first smaller", reading.line_of(low), low))  # fmt: skip
    cap = _MAX_CHANNELS if version is None or version >= (2, 25, 0) else _MAX_CHANNELS_BEFORE_225
    for name in ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"):
        if name in env and read_integer(env[name]) > cap:
            found.append(Finding("problem", "clamped", f"{name}={env[name]} is above NCCL's limit of {cap} channels: it is clamped",
                                 f"write {cap} or less", reading.line_of(name), name))  # fmt: skip
    return found


def _powerless(env: dict[str, str], reading: Reading) -> list[Finding]:
    """Variables that act only on protocols that NCCL_PROTO leaves out."""
    value = env.get("NCCL_PROTO")
    if value is None:
        return []
    lists = read("NCCL_PROTO", value)
    used = set(lists.of("AllReduce", TOKENS["NCCL_PROTO"]))
    if lists.errors or not used:
        return []
    found = []
    for name in env:
        protos = set(KNOBS[name].protos)
        if not protos & used:
            found.append(Finding("warning", "no-effect", f"{name} acts on {'/'.join(KNOBS[name].protos)} only; with NCCL_PROTO={value} it does nothing for all-reduce",
                                 "remove it", reading.line_of(name), name))  # fmt: skip
    return found
