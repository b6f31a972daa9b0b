"""What the tuner plugin should do per size, from a fit: a rule only where something measured beats NCCL's own choice. Pure."""

import math
from dataclasses import dataclass, field

from nccltune.emit.document import Rule
from nccltune.emit.gain import Gain, compare, curve, entry_with
from nccltune.errors import NoBasisError, QualityError
from nccltune.knobs import KNOBS
from nccltune.parse.nccl_names import algo_name, proto_name
from nccltune.schemas.fit import CurvePoint, Fit
from nccltune.schemas.setting import Setting
from nccltune.tuner.policy import MAX_BYTES

_COUNTS = ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS")
EXPRESSIBLE = ("NCCL_ALGO", "NCCL_PROTO", *_COUNTS)
"""Variables whose whole effect on one all-reduce is its algorithm, protocol and channels, so that a rule can stand for them."""
MAX_REACH = 2
"""A rule reaches at most this factor beyond a measured size where the next one is NCCL's own: leaving NCCL alone is safe."""
ANY = -1
OWN_COUNT = 0


@dataclass(frozen=True, slots=True)
class _Best:
    """What to use at one measured size; ``is_own``: NCCL's own choice is as fast."""

    point: CurvePoint
    setting: Setting
    is_own: bool
    gain: Gain | None

    @property
    def triple(self) -> tuple[str, str, int]:
        """Algorithm, protocol and channels, as measured."""
        return _triple(self.point)

    def words(self) -> str:
        """Return one line of evidence."""
        algo, proto, channels = self.triple
        many = "channel" if channels == 1 else "channels"
        text = f"{self.point.size_bytes} B: {algo} {proto}, {channels} {many}, {self.point.time_us:.2f} us"
        if self.is_own:
            return f"{text}: NCCL's own choice, nothing measured is faster beyond noise"
        text += f" (measured as '{self.setting.name}')"
        if self.gain is None:
            return f"{text}; NCCL's own choice was not measured"
        return f"{text}, {self.gain.percent:.1f}% faster [{self.gain.low:.1f}, {self.gain.high:.1f}] than NCCL's own choice"


@dataclass
class PluginPlan:
    """Rules with the variables they need beside them, evidence per size, and what to know."""

    rules: list[Rule] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    evidence: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def inexpressible(env: dict[str, str]) -> dict[str, str]:
    """Return the variables of a setting that no rule can stand for: they stay in the environment."""
    return {name: value for name, value in env.items() if name not in EXPRESSIBLE}


def plugin_plan(fit: Fit, env: dict[str, str], *, ll128_by_default: bool) -> PluginPlan:
    """Make rules for communicators under ``env`` (no ALGO, PROTO or channels in it).

    A plugin cannot enable LL128 where NCCL does not (``ll128_by_default``), so such curves do not count. Raises
    NoBasisError where no point says what NCCL used, QualityError where nothing is faster beyond noise.
    """
    best = _best_per_size(fit, env, ll128_by_default)
    if not best:
        raise NoBasisError(
            "no tuner rules can be made from this run",
            "none of its points says which algorithm, protocol and channels NCCL used",
            "scan with the nccl back end, which reads NCCL's own log",
        )
    plan = PluginPlan(env=dict(env), evidence=[item.words() for item in best])
    if all(item.is_own for item in best):
        raise QualityError(
            "there is nothing to tell a tuner plugin",
            "at no measured size is anything faster than NCCL's own choice beyond noise",
            "leave the choice to NCCL, or scan more settings and sizes",
        )
    need = max(item.triple[2] for item in best if not item.is_own)
    own = _own_channels(fit, env)
    if own is not None and need <= own:
        plan.rules = _rules(fit, best, pin=False)
        return plan
    # A communicator with fewer channels would cap the rule. With more of them NCCL's own choices change too, so
    # those are written down as they were measured.
    plan.env["NCCL_MIN_NCHANNELS"] = str(need)
    plan.rules = _rules(fit, best, pin=True)
    seen = "how many channels NCCL has without it is not known" if own is None else f"NCCL was seen with {own}"
    plan.notes.append(
        f"NCCL_MIN_NCHANNELS={need} comes with the rules ({seen}): other collectives, and communicators of other sizes,"
        f" may then use up to {need} channels where NCCL alone would use fewer"
    )
    if plan.rules[-1].max_bytes == MAX_BYTES:
        largest = best[-1].point.size_bytes
        plan.notes.append(f"all-reduce above {largest} B was not measured: the choice at that size is carried on")
    return plan


def _triple(point: CurvePoint) -> tuple[str, str, int]:
    choice = point.choice
    assert choice is not None
    assert choice.algo is not None
    assert choice.proto is not None
    assert choice.num_channels is not None
    return algo_name(choice.algo), proto_name(choice.proto), choice.num_channels


def _is_known(point: CurvePoint) -> bool:
    choice = point.choice
    return bool(point.source == "measured" and choice and choice.algo and choice.proto and choice.num_channels)


def _best_per_size(fit: Fit, env: dict[str, str], ll128: bool) -> list[_Best]:
    reference = entry_with(fit, env)
    own = {p.size_bytes: p for p in curve(fit, reference) if _is_known(p)} if reference is not None else {}
    candidates: dict[int, list[tuple[CurvePoint, Setting]]] = {}
    for entry in fit.settings:
        if not entry.usable or entry.timing != fit.timing:
            continue
        for point in curve(fit, entry):
            if _is_known(point) and _counts(point, entry.setting.env, env, ll128):
                candidates.setdefault(point.size_bytes, []).append((point, entry.setting))
    return [
        _judge(candidates[size], own.get(size), reference.setting if reference else None) for size in sorted(candidates)
    ]


def _counts(point: CurvePoint, measured: dict[str, str], env: dict[str, str], ll128: bool) -> bool:
    """Whether a rule under ``env`` gives what was measured under ``measured``: the rest that acts on it must be the same."""
    proto = _triple(point)[1]
    if proto == "LL128" and not ll128 and measured != env:
        return False
    return _acting(inexpressible(measured), proto) == _acting(env, proto)


def _acting(env: dict[str, str], proto: str) -> dict[str, str]:
    """Variables that can act on a protocol: NCCL_BUFFSIZE, for one, touches Simple only."""
    return {name: value for name, value in env.items() if name not in KNOBS or proto in KNOBS[name].protos}


def _judge(found: list[tuple[CurvePoint, Setting]], own: CurvePoint | None, own_setting: Setting | None) -> _Best:
    point, setting = min(found, key=lambda item: item[0].time_us)
    if own is None or own_setting is None:
        return _Best(point, setting, False, None)
    gain = compare([own], [point])
    if gain is None or not gain.is_gain or _triple(point) == _triple(own):
        return _Best(own, own_setting, True, None)
    return _Best(point, setting, False, gain)


def _own_channels(fit: Fit, env: dict[str, str]) -> int | None:
    """Most channels that the communicator was seen to use under ``env``: a lower bound of what it has."""
    reference = entry_with(fit, env)
    counts = [_triple(p)[2] for p in curve(fit, reference) if _is_known(p)] if reference is not None else []
    return max(counts, default=None)


def _rules(fit: Fit, best: list[_Best], *, pin: bool) -> list[Rule]:
    """Ranges between measured sizes, bounded at geometric means, equal neighbours joined.

    Without ``pin`` nothing is said below the smallest and above the largest measured size, nor where NCCL's own choice
    is as fast, and the count stays NCCL's where the winner did not set one. With it every size has a rule.
    """
    rules: list[Rule] = []
    for index, item in enumerate(best):
        if item.is_own and not pin:
            continue
        algo, proto, channels = item.triple
        low, high = _range(best, index, pin)
        if not pin and not set(_COUNTS) & set(item.setting.env):
            channels = OWN_COUNT
        rule = Rule("AllReduce", low, high, algo, proto, channels, fit.num_ranks, 1)
        previous = rules[-1] if rules else None
        if previous is not None and previous.max_bytes + 1 == low and _same(previous, rule):
            rules[-1] = Rule("AllReduce", previous.min_bytes, high, algo, proto, channels, fit.num_ranks, 1)
        else:
            rules.append(rule)
    return rules


def _range(best: list[_Best], index: int, pin: bool) -> tuple[int, int]:
    """The sizes that one measured size speaks for; against NCCL's own choice at most a factor of MAX_REACH away."""
    size, is_last = best[index].point.size_bytes, index == len(best) - 1
    low, high = (0 if pin else size), size
    if is_last and pin and best[index].triple[1] == "Simple":
        high = MAX_BYTES  # a low-latency protocol is not carried on to sizes where nobody measured it
    if index:
        low = math.isqrt(best[index - 1].point.size_bytes * size) + 1
        if best[index - 1].is_own and not pin:
            low = max(low, -(-size // MAX_REACH))
    if not is_last:
        high = math.isqrt(size * best[index + 1].point.size_bytes)
        if best[index + 1].is_own and not pin:
            high = min(high, size * MAX_REACH)
    return low, high


def _same(one: Rule, other: Rule) -> bool:
    return (one.algo, one.proto, one.num_channels) == (other.algo, other.proto, other.num_channels)
