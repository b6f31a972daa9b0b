"""Tables that more than one command prints."""

from typing import TypeVar

from rich.table import Table

from nccltune.cli import _beside, _console
from nccltune.schemas.fit import BesideFit, CurvePoint, Fit, SettingFit
from nccltune.units import format_percent, format_size, format_us

T = TypeVar("T")

_MAX_COLUMNS = 3
_MAX_LISTED = 8


def fit_table(fit: Fit, num_rows: int | None = None) -> Table:
    """Rank the settings of a fit: one forward's all-reduces (or the times, without a model), against the base.

    ``num_rows``: most settings to list; the base and the best are always among them.
    """
    members = [s for s in fit.settings if s.timing == fit.timing]
    columns = _columns(members)
    what = f"all-reduces of one {fit.model} forward" if fit.model else "one all-reduce"
    title = f"{what}, us (90% interval), {fit.num_ranks} ranks, {fit.timing}, base {fit.base}"
    heads = [
        ("setting", "left"),
        *((head, "right") for head, _ in columns),
        ("vs base", "right"),
        ("verdict", "left"),
        ("choice", "left"),
    ]
    shown = (
        members
        if num_rows is None
        else [s for i, s in enumerate(members) if i < num_rows or s.setting.name in ("base", fit.best)]
    )
    rows = [[s.setting.name, *(_cell(s, key) for _, key in columns), *_versus(s, fit), _choices(s)] for s in shown]
    if len(shown) < len(members):
        rows.append([f"... {len(members) - len(shown)} more", *[""] * (len(heads) - 1)])
    if fit.beside:
        rows.append(["beside NCCL:", *[""] * (len(heads) - 1)])
        rows += [[f"  {b.label}", *(_cell(b, key) for _, key in columns), *_beside.verdict(b), ""] for b in fit.beside]
    return _console.table(title, heads, rows)


def fit_summary(fit: Fit) -> list[str]:
    """Say which setting is best, what ties with it, and why others are not ranked."""
    members = [s for s in fit.settings if s.timing == fit.timing]
    lines = ["best: none beats the base beyond noise"]
    for best in [s for s in members if s.setting.name == fit.best]:
        versus = best.versus_base
        gain = (
            f" ({format_percent(versus.percent)}, {format_percent(versus.low_percent)} to {format_percent(versus.high_percent)})"
            if versus
            else ""
        )
        lines = [f"best: {fit.best}{gain}: {best.setting.id}"]
    if fit.tied_with_best:
        lines.append(f"tied with it: {', '.join(fit.tied_with_best[:_MAX_LISTED])}{_more(fit.tied_with_best)}")
    left = [f"{s.setting.name}: {s.reason}" for s in members if s.versus_base is None and s.reason]
    lines += left[:_MAX_LISTED]
    return lines + (
        [f"{len(left) - _MAX_LISTED} more are not ranked; fit.json has the reasons"] if len(left) > _MAX_LISTED else []
    )


def _more(items: list[str]) -> str:
    return f" and {len(items) - _MAX_LISTED} more" if len(items) > _MAX_LISTED else ""


def _columns(members: list[SettingFit]) -> list[tuple[str, str]]:
    """Heading and key of a few columns, spread over what was measured: tokens with a model, bytes without."""
    if any(s.forward_us for s in members):
        longest = max(members, key=lambda s: len(s.forward_us))
        return [(f"{key} tok", key) for key in _spread(sorted(longest.forward_us, key=int))]
    longest = max(members, key=lambda s: len(s.points))
    return [(format_size(p.size_bytes), str(p.size_bytes)) for p in _spread(longest.points)]


def _spread(items: list[T]) -> list[T]:
    if len(items) <= _MAX_COLUMNS:
        return items
    return [items[round(i * (len(items) - 1) / (_MAX_COLUMNS - 1))] for i in range(_MAX_COLUMNS)]


def _cell(setting: SettingFit | BesideFit, key: str) -> str:
    if key in setting.forward_us:
        low, high = setting.forward_interval_us[key]
        return f"{format_us(setting.forward_us[key])} ({format_us(low)}-{format_us(high)})"
    point = next((p for p in setting.points if not setting.forward_us and str(p.size_bytes) == key), None)
    return f"{format_us(point.time_us)} ({format_us(point.low_us)}-{format_us(point.high_us)})" if point else "-"


def _versus(setting: SettingFit, fit: Fit) -> tuple[str, str]:
    versus = setting.versus_base
    if versus is None:
        # The whole reason is a line below the table; here its first words.
        return "-", "not ranked" if setting.usable else setting.reason.partition(" at ")[0] or "not usable"
    mark = (
        " (best)"
        if setting.setting.name == fit.best
        else " (tied)"
        if setting.setting.name in fit.tied_with_best
        else ""
    )
    twin = f" as {setting.same_as}" if versus.verdict == "same" and setting.same_as else ""
    return format_percent(versus.percent) if versus.verdict != "base" else "", versus.verdict + twin + mark


def _choices(setting: SettingFit) -> str:
    """What NCCL used, smallest size first: ``Ring LL 1-14ch, Ring Simple 24ch``."""
    groups: dict[str, list[int]] = {}
    for point in setting.points:
        for kind in [_kind(point)] if point.choice else []:
            groups.setdefault(kind, []).extend(
                [point.choice.num_channels] if point.choice and point.choice.num_channels else []
            )
    return ", ".join(" ".join(part for part in (kind, _channels(counts)) if part) for kind, counts in groups.items())


def _kind(point: CurvePoint) -> str:
    choice = point.choice
    words = (choice.algo, choice.proto) if choice else ()
    return " ".join(word for word in words if word) or (choice.kernel or "" if choice else "")


def _channels(counts: list[int]) -> str:
    if not counts:
        return ""
    return f"{min(counts)}ch" if min(counts) == max(counts) else f"{min(counts)}-{max(counts)}ch"
