"""Whether a setting may be used and credited, from what happened to its cases. Pure."""

from collections.abc import Iterable

from nccltune.costmodel.points import Cells
from nccltune.schemas.measurement import Measurement, Timing
from nccltune.schemas.setting import BASE, Setting
from nccltune.units import format_size


def fault(setting: Setting, cells: Cells) -> str:
    """Return why a setting is not usable, empty if it is.

    Wrong results at any size, in any timing, disqualify it whole. One that did not take effect is not credited. One
    that fails where the base works is not usable; a failure that the base shares says nothing about the setting, and
    a skipped case (time budget, search) is no failure.
    """
    failures = [m for m in cells.failures.get(setting.id, []) if m.status != "skipped"]
    wrong = [m for m in failures if m.status == "wrong_results"]
    if wrong:
        return f"wrong results at {_sizes(wrong)}"
    if setting.id == BASE.id:
        return ""
    idle = [m for m in failures if m.status == "not_in_force" or m.in_force is False]
    if idle:
        why = next((text for m in idle for text in (*(r.message for r in m.rejected), *m.warnings) if text), "")
        return f"did not take effect at {_sizes(idle)}" + (f": {_line(why)}" if why else "")
    own = [m for m in failures if (m.timing, BASE.id, m.size_bytes) not in cells.failed]
    if own:
        error = own[0].error
        return f"{own[0].status} at {_sizes(own)}" + (f": {error.kind}, {_line(error.message)}" if error else "")
    return ""


def same_as(setting: Setting, timing: Timing, cells: Cells) -> str | None:
    """Id of the one other setting whose measurements this one shares at every size (of every case it has)."""
    keys = [(timing, setting.id, size) for size in cells.sizes.get((timing, setting.id), [])]
    owners = {cells.canonical(key)[1] for key in keys}
    idle = [m for m in cells.failures.get(setting.id, []) if m.timing == timing and m.status == "not_in_force"]
    owners |= {cells.by_case[m.same_as][1] if m.same_as in cells.by_case else setting.id for m in idle}
    return owners.pop() if len(owners) == 1 and setting.id not in owners else None


def _sizes(measurements: Iterable[Measurement]) -> str:
    sizes = sorted({m.size_bytes for m in measurements})
    more = f" and {len(sizes) - 4} more sizes" if len(sizes) > 4 else ""
    return ", ".join(format_size(size) for size in sizes[:4]) + more


def _line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0][:200] if lines else "no message"
