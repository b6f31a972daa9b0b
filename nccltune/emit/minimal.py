"""The variables of a setting that earn their place: backward elimination over curves that were really measured. Pure."""

from dataclasses import dataclass, field

from nccltune.algo_lists import TOKENS, read
from nccltune.emit.gain import Gain, Where, compare, curve, entry_with
from nccltune.knobs import KNOBS, decisions
from nccltune.schemas.fit import Fit
from nccltune.schemas.setting import Setting

_PROTO = "NCCL_PROTO"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why a variable is kept: its own measured gain, or that it was not separately measured."""

    gain: Gain | None
    how: str

    def __str__(self) -> str:
        return f"{self.gain}, {self.how}" if self.gain is not None else self.how


@dataclass
class MinimalSet:
    """A setting split into what is worth exporting and what is not."""

    kept: dict[str, Evidence] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    unproven: list[str] = field(default_factory=list)
    """Kept without evidence of their own."""


def minimal_set(fit: Fit, setting: Setting, *ranges: Where) -> MinimalSet:
    """Split ``setting`` by the curves of ``fit`` over each of ``ranges`` of sizes (none given: all sizes as one).

    A variable is dropped only when the set without it (and without all dropped before) was measured and is in no range
    slower beyond noise than the full set, or when it cannot act on the protocol in use. So the set that remains has a
    measured curve of its own, or is the full set.
    """
    result = MinimalSet()
    ranges = ranges or (lambda _: True,)
    full = entry_with(fit, setting.env)
    env = dict(setting.env)
    if full is not None:
        while (drop := _next_drop(fit, setting.env, env, ranges)) is not None:
            names, why = drop
            for name in names:
                result.dropped[name] = why
                del env[name]
    for name in _powerless(env):
        result.dropped[name] = (
            f"acts on {'/'.join(KNOBS[name].protos)} only, which NCCL_PROTO={env[_PROTO]} leaves out for all-reduce"
        )
        del env[name]
    for unit in decisions(env):
        evidence = _evidence(fit, env, setting.env, unit, _union(ranges))
        for name in unit:
            result.kept[name] = evidence
            if evidence.gain is None:
                result.unproven.append(name)
    return result


def _without(env: dict[str, str], unit: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in unit}


def _union(ranges: tuple[Where, ...]) -> Where:
    return lambda size_bytes: any(where(size_bytes) for where in ranges)


def _next_drop(
    fit: Fit, whole: dict[str, str], env: dict[str, str], ranges: tuple[Where, ...]
) -> tuple[tuple[str, ...], str] | None:
    """The unit whose loss costs least, if that loss is within noise of the whole set; None when each one counts."""
    full = entry_with(fit, whole)
    assert full is not None
    candidates = []
    for unit in decisions(env):
        smaller = entry_with(fit, _without(env, unit))
        if smaller is None:
            continue
        parts = [compare(curve(fit, smaller), curve(fit, full), where) for where in ranges]
        own = compare(curve(fit, smaller), curve(fit, full), _union(ranges))
        if own is not None and not any(part is not None and part.is_gain for part in parts):
            candidates.append((own.percent, unit, own))
    if not candidates:
        return None
    _, unit, own = min(candidates)
    word = "the set is faster without it" if own.is_loss else "leaving it out changes nothing beyond noise"
    return unit, f"{word}: {own.percent:+.1f}% [{own.low:+.1f}, {own.high:+.1f}] with it"


def _powerless(env: dict[str, str]) -> list[str]:
    """Variables that act only on protocols which the setting's own NCCL_PROTO leaves out for all-reduce."""
    value = env.get(_PROTO)
    if value is None:
        return []
    lists = read(_PROTO, value)
    used = lists.of("AllReduce", TOKENS[_PROTO])
    if lists.errors or not used:
        return []
    return [name for name in env if name in KNOBS and not set(KNOBS[name].protos) & set(used)]


def _evidence(fit: Fit, env: dict[str, str], whole: dict[str, str], unit: tuple[str, ...], where: Where) -> Evidence:
    """Own gain of a unit: against the kept set without it, the whole set without it, or the largest subset it was added to."""
    for variables, how in ((env, "against the same set without it"), (whole, "against the full set without it")):
        full, less = entry_with(fit, variables), entry_with(fit, _without(variables, unit))
        gain = compare(curve(fit, less), curve(fit, full), where) if full is not None and less is not None else None
        if gain is not None:
            return Evidence(gain, how)
    added = _added(fit, env, unit, where)
    if added is not None:
        gain, to = added
        if gain.is_gain:
            return Evidence(gain, f"added to {to}")
        return Evidence(
            None,
            f"alone {gain.percent:+.1f}% [{gain.low:+.1f}, {gain.high:+.1f}] on top of {to}; together not separately measured",
        )
    return Evidence(None, "not separately measured")


def _added(fit: Fit, env: dict[str, str], unit: tuple[str, ...], where: Where) -> tuple[Gain, str] | None:
    subsets = [
        s
        for s in fit.settings
        if s.usable and s.setting.env.items() < env.items() and not set(unit) & set(s.setting.env)
    ]
    for small in sorted(subsets, key=lambda s: -len(s.setting.env)):
        large = entry_with(fit, {**small.setting.env, **{name: env[name] for name in unit}})
        base = entry_with(fit, small.setting.env)
        gain = compare(curve(fit, base), curve(fit, large), where) if large is not None and base is not None else None
        if gain is not None:
            return gain, small.setting.id if small.setting.env else "the base"
    return None
