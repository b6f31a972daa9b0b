"""Which setting of a run is emitted, and how much it gains and costs there."""

from dataclasses import dataclass, field

from nccltune.emit.gain import Gain, Where, compare, curve, decode_limit, entry_with, weighted
from nccltune.errors import InputError, QualityError
from nccltune.knobs import NAMED, find_setting
from nccltune.schemas.fit import Fit, SettingFit
from nccltune.schemas.setting import BASE, Setting


@dataclass(frozen=True, slots=True)
class Objective:
    """Weight of decode against prefill; ``stated``: the user chose it, so decode's cost at prefill is accepted."""

    decode_weight: float = 1.0
    stated: bool = False


def parse_objective(text: str | None) -> Objective:
    """Read ``decode``, ``prefill`` or ``both:0.7`` (the share of decode)."""
    if text is None:
        return Objective()
    if text in ("decode", "prefill"):
        return Objective(float(text == "decode"), stated=True)
    name, _, share = text.partition(":")
    try:
        weight = float(share) if share else 0.5
    except ValueError:
        weight = -1.0
    if name != "both" or not 0 <= weight <= 1:
        raise InputError(f"'{text}' is no objective", "expected decode, prefill or both:WEIGHT with a weight from 0 to 1",
                         "write for example both:0.7")  # fmt: skip
    return Objective(weight, stated=True)


@dataclass(frozen=True)
class Selection:
    """The setting to emit, with what the run says about it. ``entry`` None: not measured in this run."""

    setting: Setting
    entry: SettingFit | None = None
    decode: Gain | None = None
    prefill: Gain | None = None
    notes: tuple[str, ...] = ()
    tied: tuple[str, ...] = field(default_factory=tuple)


def select(fit: Fit, text: str, objective: Objective, bytes_per_token: int | None = None) -> Selection:
    """Find the setting ``text`` (``best``, ``base``, a name of the run, or variables) and measure it against the base."""
    limit = decode_limit(bytes_per_token)
    if text == "best":
        return _best(fit, objective, limit)
    setting = find_setting(text, {s.setting.name: s.setting for s in fit.settings})
    named = [s for s in fit.settings if s.setting.env == setting.env]
    unusable = next((s for s in named if not s.usable), None)
    if unusable is not None and entry_with(fit, setting.env) is None and setting.env:
        raise QualityError(f"the setting '{unusable.setting.name}' is not usable in this run", unusable.reason or "its measurement failed",
                           "choose another setting, or measure it again")  # fmt: skip
    selection = against_base(fit, setting, limit)
    if selection.entry is None and setting.env:
        near = ", ".join(s.setting.name for s in fit.settings if s.usable)[:200]
        note = f"'{setting.name}' was not measured in this run; measured: {near}"
        return Selection(setting, notes=(note,))
    return selection


def named_only(text: str) -> Selection:
    """Find a setting without a run: ``base``, a shipped name such as ``seed``, or variables."""
    if text == "best":
        raise InputError(
            "the best setting of what?", "without a run nothing was measured", "give --run RUN, or --setting seed"
        )
    setting = find_setting(text)
    source = (
        "the hand-tuned set of 8x RTX PRO 6000 (PCIe) serving Kimi-K2.5"
        if setting.env == NAMED["seed"].env
        else "given by hand"
    )
    return Selection(setting, notes=(f"{source}: not measured on this machine",) if setting.env else ())


def against_base(fit: Fit, setting: Setting, limit: int) -> Selection:
    """Measure exactly this setting against the base, as far as the run has both."""
    entry, base = entry_with(fit, setting.env), entry_with(fit, {})
    if entry is None or base is None or not setting.env:
        return Selection(setting, entry)
    ours, theirs = curve(fit, base), curve(fit, entry)
    return Selection(
        setting, entry, compare(ours, theirs, decode_sizes(limit)), compare(ours, theirs, prefill_sizes(limit))
    )


def decode_sizes(limit: int) -> Where:
    """Accept sizes up to ``limit`` bytes."""
    return lambda size_bytes: size_bytes <= limit


def prefill_sizes(limit: int) -> Where:
    """Accept sizes above ``limit`` bytes."""
    return lambda size_bytes: size_bytes > limit


def sizes_that_count(objective: Objective, limit: int) -> list[Where]:
    """Return the ranges of sizes that have a weight under ``objective``."""
    weights = ((decode_sizes(limit), objective.decode_weight), (prefill_sizes(limit), 1 - objective.decode_weight))
    return [where for where, weight in weights if weight > 0]


def _best(fit: Fit, objective: Objective, limit: int) -> Selection:
    if objective.decode_weight == 1:
        return _best_at_decode(fit, limit)
    scored = []
    for entry in fit.settings:
        if entry.usable and entry.timing == fit.timing and entry.setting.env:
            found = against_base(fit, entry.setting, limit)
            score = weighted(found.decode, found.prefill, objective.decode_weight)
            if score is not None:
                scored.append((score, found))
    if not scored:
        raise QualityError("no setting can be judged by that objective", f"no usable setting was measured above {limit} B (prefill) as the base was",
                           "scan larger sizes too, for example --tokens 1-16,1024,4096")  # fmt: skip
    (_, low), found = max(scored, key=lambda item: item[0][0])
    if low > 0:
        return found
    return Selection(
        BASE, entry_with(fit, {}), notes=("nothing beat the base environment beyond noise under this objective",)
    )


def _best_at_decode(fit: Fit, limit: int) -> Selection:
    nothing = Selection(
        BASE, entry_with(fit, {}), notes=("nothing beat the base environment beyond noise: only the base is written",)
    )
    if fit.best is None:
        return nothing
    entry = next((s for s in fit.settings if s.setting.name == fit.best), None)
    if entry is None or not entry.usable:
        raise InputError(
            f"the fit calls '{fit.best}' the best, but holds no usable curve of it",
            "",
            "fit the run again: nccltune fit RUN",
        )
    if not entry.setting.env:
        return nothing
    found = against_base(fit, entry.setting, limit)
    if found.decode is not None and not found.decode.is_gain:
        note = f"the gain over decode sizes is within noise: {found.decode}"
        return Selection(found.setting, found.entry, found.decode, found.prefill, (note,), tuple(fit.tied_with_best))
    return Selection(found.setting, found.entry, found.decode, found.prefill, (), tuple(fit.tied_with_best))
