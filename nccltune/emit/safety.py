"""What could make an emitted setting useless or harmful: each check returns notes, hard ones stop the emission. Pure."""

from dataclasses import dataclass
from typing import Protocol

from nccltune.emit.findings import Entry, Reading
from nccltune.emit.gain import Gain
from nccltune.emit.grammar import PREFIXES, names_ll128
from nccltune.emit.value_lint import judge
from nccltune.knobs import KNOBS, Version, nearest
from nccltune.schemas.machine import Machine
from nccltune.schemas.measurement import Measurement

LL128_MIN_CHECKS = 300
"""Clean data checks that LL128 needs where NCCL keeps it off: with none wrong in n, the failure rate is below 3/n at 95%
(rule of three), so 300 bound it by 1%; NVIDIA/nccl#549 reports one bad run in 17."""


class EnginePath(Protocol):
    """Who carries decode-size all-reduces, as nccltune.engine_path tells it."""

    @property
    def path(self) -> str: ...
    @property
    def nccl_settings_matter(self) -> bool: ...
    @property
    def reason(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Note:
    """One thing to know before using the file. ``hard``: nothing is written without --force."""

    code: str
    text: str
    do: str = ""
    hard: bool = False


def engine_notes(engine_path: EnginePath | None) -> list[Note]:
    """The engine's own all-reduce would carry decode sizes: the variables then change little, but break nothing."""
    if engine_path is None or engine_path.nccl_settings_matter:
        return []
    do = getattr(engine_path, "how_to_change", "") or "see 'nccltune doctor'"
    text = f"SGLang would carry decode-size all-reduces by '{engine_path.path}', not NCCL: {engine_path.reason}"
    return [Note("engine-path", text, do)]


def prefill_notes(prefill: Gain | None, max_cost_percent: float, *, accepted: bool) -> list[Note]:
    """The gain at decode costs more than ``max_cost_percent`` at prefill sizes; ``accepted``: the user stated an objective."""
    if prefill is None:
        text = "prefill sizes were not measured: a setting good at decode can cost much there"
        return [Note("prefill-unknown", text, "scan with --tokens 1-16,1024,4096 to know")]
    if prefill.is_loss and -prefill.percent > max_cost_percent:
        text = f"prefill sizes pay for it: {prefill}; the limit is {max_cost_percent:g}%"
        do = "choose --objective both:0.5, a per-size policy (--format tuner-plugin), or accept it with --objective decode"
        return [Note("prefill-cost", text, "" if accepted else do, hard=not accepted)]
    return []


def decode_notes(decode: Gain | None) -> list[Note]:
    """Decode sizes, which the tool is about, become slower beyond noise."""
    if decode is None or not decode.is_loss:
        return []
    return [Note("decode-cost", f"decode sizes pay for it: {decode}", "use it for prefill workers only")]


def name_notes(env: dict[str, str]) -> list[Note]:
    """Names one slip away from a variable of NCCL: they have no effect."""
    slips = {name: nearest(name) for name in env if name not in KNOBS}
    return [
        Note("unknown-variable", f"{name} is no NCCL variable: it has no effect", f"did you mean {close}?")
        for name, close in slips.items()
        if close
    ]


def value_notes(env: dict[str, str], version: Version | None) -> list[Note]:
    """Values that NCCL refuses, clamps or misreads: what ``check`` would say of the file."""
    reading = Reading([Entry(name, value, 1) for name, value in env.items()])
    found = [
        f
        for f in judge(reading, version)
        if f.level == "problem" and f.code in ("value", "min-above-max", "clamped", "empty")
    ]
    return [Note(f.code, f.message, f.advice, hard=True) for f in found]


def ll128_by_default(machine: Machine | None, env: dict[str, str] | None = None) -> bool:
    """Tell whether NCCL enables LL128 by itself here: all GPUs joined by NVLink (src/graph/tuning.cc).

    Under an ``env`` that turns peer access off the way leads through host memory, whatever the links are.
    """
    env = env or {}
    no_peer_access = env.get("NCCL_P2P_DISABLE", "0") != "0" or env.get("NCCL_P2P_LEVEL", "").upper() in ("LOC", "0")
    if machine is None or len(machine.gpu_links) < 2 or no_peer_access:
        return False
    pairs = [link for row, others in machine.gpu_links.items() for column, link in others.items() if row != column]
    return bool(pairs) and all(link.startswith("NV") for link in pairs)


def ll128_notes(
    env: dict[str, str], machine: Machine | None, measurements: list[Measurement], base: dict[str, str] | None = None
) -> list[Note]:
    """LL128 forced where NCCL (under ``base``) keeps it off, without many passed data checks: corruption is possible."""
    value = env.get("NCCL_PROTO")
    if value is None or not names_ll128(value) or ll128_by_default(machine, {**(base or {}), **env}):
        return []
    mine = [m for m in measurements if m.setting.env == env]
    wrong = sum(1 for m in mine if m.num_wrong)
    # num_checked counts elements over all rounds of fresh data, count the elements of one message.
    passed = sum(m.num_checked // max(m.count, 1) for m in mine if m.status == "ok" and m.num_wrong == 0)
    if wrong:
        return [Note("ll128", f"LL128 gave wrong data in {wrong} cases of this run", "do not use it here", hard=True)]
    if passed >= LL128_MIN_CHECKS:
        return [Note("ll128-forced", f"forces LL128 where NCCL keeps it off; the data check passed {passed} times")]
    text = f"NCCL_PROTO={value} forces LL128 where NCCL keeps it off (no NVLink in use between all GPUs), and only {passed} data checks passed"
    return [Note("ll128", text, f"measure with at least {LL128_MIN_CHECKS} checks, or use LL or Simple", hard=True)]


def version_notes(measured: Version | None, target: Version | None) -> list[Note]:
    """The NCCL the file is for is not the one that was measured."""
    if measured is None or target is None or measured == target:
        return []
    text = f"measured with NCCL {dotted(measured)}, written for NCCL {dotted(target)}: the gains may not hold"
    return [Note("version", text, "scan again with the NCCL that is served")]


def grammar_notes(env: dict[str, str], target: Version | None) -> list[Note]:
    """Before 2.24 a list cannot be limited to all-reduce."""
    if target is None or target >= PREFIXES or not {"NCCL_ALGO", "NCCL_PROTO"} & set(env):
        return []
    return [
        Note(
            "one-list",
            f"NCCL {dotted(target)} applies NCCL_ALGO and NCCL_PROTO to every collective",
            "use NCCL 2.24 or later",
        )
    ]


def dotted(version: Version) -> str:
    """Format a version: 2.28.9."""
    return ".".join(map(str, version))
