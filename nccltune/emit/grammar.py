"""NCCL_ALGO and NCCL_PROTO as NCCL reads them, by version: read, judge, and write for all-reduce alone.

Three grammars: before 2.24 one list for all collectives; since 2.24 ``list[;function:list]...`` without any fallback to
Ring (NVIDIA/nccl src/graph/tuning.cc); since 2.31 naming functions leaves the unnamed ones without an algorithm
(vllm-project/vllm#58179), so a complete first list is needed.
"""

import re
from dataclasses import dataclass

from nccltune.algo_lists import FUNCTIONS, TOKENS, Lists, read
from nccltune.emit.findings import Finding
from nccltune.errors import InputError
from nccltune.knobs import Version

PREFIXES: Version = (2, 24, 0)
COMPLETE: Version = (2, 31, 0)
_OTHERS = FUNCTIONS[:-1]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A value rewritten for one NCCL version, and what to tell the reader."""

    value: str
    notes: tuple[str, ...] = ()


def parse_version(text: str) -> Version:
    """Read ``2.28.9``, ``2.28.9+cuda13.0``, ``v2.31`` or NCCL's own code ``22809``."""
    match = re.match(r"^[vV]?(\d+)\.(\d+)(?:\.(\d+))?(?![\d])", text.strip())
    if match:
        return int(match.group(1)), int(match.group(2)), int(match.group(3) or 0)
    if re.fullmatch(r"2\d{4}", text.strip()):
        code = int(text)
        return code // 10000, code // 100 % 100, code % 100
    raise InputError(f"'{text}' is not an NCCL version", "expected numbers with dots", "write for example 2.28.9")


def render(variable: str, value: str, version: Version | None, *, ll128_auto: bool = False) -> Rendered:
    """Write ``value`` so that all-reduce gets what it asks for and other collectives stay usable.

    ``ll128_auto``: NCCL enables LL128 by itself on this machine (all GPUs joined by NVLink), so a complete list of
    protocols may name it. Unknown version: the form that every version since 2.24 reads. Raises InputError.
    """
    lists, tokens = read(variable, value), TOKENS[variable]
    if lists.errors:
        raise InputError(f"{variable}={value} is not a value that NCCL reads", lists.errors[0], "correct the value")
    wanted = lists.of("AllReduce", tokens)
    if not wanted:
        raise InputError(f"{variable}={value} leaves all-reduce nothing to use", "", "correct the value")
    if version is not None and version < PREFIXES:
        return _render_plain(variable, value, lists, wanted)
    if lists.default is not None and "AllReduce" in lists.named and not _starved(variable, lists, version):
        return Rendered(value)
    spelled = ",".join(w.lower() if variable == "NCCL_ALGO" else w for w in wanted)
    kept = [(f, lists.named[f]) for f in _OTHERS if f in lists.named]
    named = ";".join([*(f"{f.lower()}:{_spell(variable, v)}" for f, v in kept), f"allreduce:{spelled}"])
    if version is not None and version < COMPLETE:
        return Rendered(named, () if named == value else (f"given as {value}; written for all-reduce only",))
    first = _complete(variable, ll128_auto)
    notes = ["complete first list: NCCL 2.31 leaves collectives without one no algorithm (vllm-project/vllm#58179)"]
    if version is None:
        notes.append("NCCL version unknown: this form needs 2.24 or later")
    return Rendered(f"{first};{named}", tuple(notes))


def _render_plain(variable: str, value: str, lists: Lists, wanted: tuple[str, ...]) -> Rendered:
    note = f"NCCL before 2.24 has one {variable} list for all collectives: all-gather and broadcast are held to it too"
    if variable == "NCCL_ALGO" and "Ring" not in wanted:
        note += " (they fall back to Ring with any protocol, NVIDIA/nccl#1304)"
    dropped = [f for f in lists.named if f != "AllReduce"]
    notes = (note, *([f"the lists of {', '.join(dropped)} cannot be written for it"] if dropped else []))
    return Rendered(_spell(variable, wanted) if lists.named else value, notes)


def _spell(variable: str, items: tuple[str, ...]) -> str:
    return ",".join(item.lower() if variable == "NCCL_ALGO" else item for item in items)


def _complete(variable: str, ll128_auto: bool) -> str:
    if variable == "NCCL_ALGO":
        return "ring,tree"
    return "LL,LL128,Simple" if ll128_auto else "LL,Simple"


def _starved(variable: str, lists: Lists, version: Version | None) -> list[str]:
    """Collectives other than all-reduce that ``lists`` leaves without anything they can use."""
    tokens = TOKENS[variable]
    starved = []
    for function in _OTHERS:
        allowed = lists.of(function, tokens)
        if lists.default is None and function not in lists.named and lists.named:
            if version is None or version >= COMPLETE:
                starved.append(function)
        elif variable == "NCCL_ALGO" and "Ring" not in allowed:
            starved.append(function)  # Tree is for all-reduce; CollNet, NVLS and PAT need hardware or several nodes
        elif not allowed:
            starved.append(function)
    return starved


def problems(variable: str, value: str, version: Version | None, line: int | None = None) -> list[Finding]:
    """Judge a value for one NCCL version, or for all of them when it is unknown."""

    def finding(level: str, code: str, message: str, advice: str) -> Finding:
        return Finding("problem" if level == "problem" else "warning", code, message, advice, line, variable)

    lists = read(variable, value)
    if lists.errors:
        return [
            finding("problem", "grammar", f"{variable}={value}: {error}", "NCCL refuses it at communicator init")
            for error in lists.errors
        ]
    found: list[Finding] = []
    if (lists.named or ";" in value) and version is not None and version < PREFIXES:
        plain = _render_plain(variable, value, lists, lists.of("AllReduce", TOKENS[variable])).value
        found.append(
            finding("problem", "grammar-version", f"{variable}={value}: NCCL before 2.24 reads no function: prefixes",
                    f"write {variable}={plain}")
        )  # fmt: skip
        return found
    starved = _starved(variable, lists, version)
    if starved and not (version is not None and version < PREFIXES):
        advice = f"write {variable}={render(variable, value, version).value}"
        since = (
            "NCCL 2.31 and later leave" if lists.default is None else "since NCCL 2.24 there is no fallback: it leaves"
        )
        message = f"{variable}={value}: {since} {', '.join(starved)} without an algorithm"
        found.append(finding("problem", "starved-collectives", message, advice))
    if variable == "NCCL_PROTO" and names_ll128(value):
        found.append(
            finding("warning", "forced-ll128", "naming LL128 forces it on, also where NCCL keeps it off (PCIe): wrong data is possible (NVIDIA/nccl#790)",
                    "keep it only where the data check passed many times")
        )  # fmt: skip
    return found


def names_ll128(value: str) -> bool:
    """Tell whether an NCCL_PROTO value allows LL128 by name or by ``^``: either forces it on where NCCL would not."""
    lists = read("NCCL_PROTO", value)
    return any("LL128" in allowed for allowed in (lists.default or (), *lists.named.values()))
