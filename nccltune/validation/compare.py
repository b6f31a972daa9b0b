"""From predictions and observations to the score: errors, coverage, ranking of settings, regret. Pure."""

from collections.abc import Sequence
from itertools import combinations

from nccltune.schemas.common import Value
from nccltune.schemas.validation import Arm, Ranking, Regret, Summary
from nccltune.validation.observation import Observation

RANKED_FROM_PERCENT = 2.0
"""Settings that were measured closer than this are not ranked: a repeat of the same server differs by about 1%."""
_ROUNDING_PERCENT = 1e-9
"""5.1 ms is 2.0000000000000018% above 5 ms in floating point, and 2% on paper."""


def arm_of(seen: Observation, predicted: Value, used: bool) -> Arm:
    """Put one prediction beside its observation."""
    value = seen.measured.value
    return Arm(
        phase=seen.phase, setting=seen.setting, batch_size=seen.batch_size, draft_tokens=seen.draft_tokens,
        context_tokens=seen.context_tokens, predicted=predicted, measured=seen.measured,
        error_percent=100 * (predicted.value / value - 1), inside_interval=predicted.low <= value <= predicted.high,
        used_for_calibration=used, accept_length=seen.accept_length, engine=seen.engine,
    )  # fmt: skip


def rank_settings(arms: Sequence[Arm]) -> list[Ranking]:
    """Compare settings two by two in the same case, where they were measured apart and not both calibrated on."""
    cases: dict[tuple[object, ...], list[Arm]] = {}
    for arm in arms:
        case = (arm.phase, arm.batch_size, arm.draft_tokens, arm.context_tokens, arm.engine)
        cases.setdefault(case, []).append(arm)
    found = []
    for group in cases.values():
        for one, other in combinations(group, 2):
            if one.used_for_calibration and other.used_for_calibration:
                continue
            faster, slower = sorted((one, other), key=lambda arm: arm.measured.value)
            measured = 100 * (slower.measured.value / faster.measured.value - 1)
            if measured <= RANKED_FROM_PERCENT + _ROUNDING_PERCENT:
                continue
            predicted = 100 * (slower.predicted.value / faster.predicted.value - 1)
            found.append(
                Ranking(
                    phase=one.phase, batch_size=one.batch_size, draft_tokens=one.draft_tokens, context_tokens=one.context_tokens,
                    faster=faster.setting, slower=slower.setting, measured_percent=measured, predicted_percent=predicted,
                    right=predicted > 0,
                )
            )  # fmt: skip
    return found


def regrets(arms: Sequence[Arm]) -> list[Regret]:
    """Choose the draft tokens of each setting and batch by predicted times, and look up what was lost.

    Measured and predicted tokens/s share the measured accept length: the choice is judged by time alone, and what
    acceptance does between arms is credited to nobody.
    """
    groups: dict[tuple[object, ...], list[Arm]] = {}
    for arm in arms:
        if arm.phase == "decode" or (arm.phase == "cycle" and arm.accept_length is not None):
            groups.setdefault((arm.setting.id, arm.batch_size, arm.context_tokens, arm.engine), []).append(arm)
    found = []
    for group in groups.values():
        if len(group) < 2 or all(arm.used_for_calibration for arm in group):
            continue
        chosen = max(group, key=lambda arm: _emitted(arm) / arm.predicted.value)
        best = max(group, key=_measured_rate)
        found.append(
            Regret(
                setting=best.setting, batch_size=best.batch_size, context_tokens=best.context_tokens,
                draft_tokens=sorted(arm.draft_tokens for arm in group), chosen_draft_tokens=chosen.draft_tokens,
                best_draft_tokens=best.draft_tokens,
                regret_percent=100 * (1 - _measured_rate(chosen) / _measured_rate(best)),
            )
        )  # fmt: skip
    return found


def summarize(
    arms: Sequence[Arm], num_not_predictable: int, ranked: Sequence[Ranking], lost: Sequence[Regret], tolerance: float
) -> Summary:
    """Return the score of the arms that were not calibrated on."""
    scored = [arm for arm in arms if not arm.used_for_calibration]
    errors = [abs(arm.error_percent) for arm in scored]
    return Summary(
        num_scored=len(scored),
        mape_percent=_mean(errors),
        coverage_percent=_mean([100.0 * arm.inside_interval for arm in scored]),
        worst_percent=max(errors, default=None),
        settings_ranked_right=all(pair.right for pair in ranked) if ranked else None,
        regret_percent=max((one.regret_percent for one in lost), default=None),
        num_used_for_calibration=len(arms) - len(scored),
        num_not_predictable=num_not_predictable,
        mape_percent_by_phase={
            phase: sum(mine) / len(mine)
            for phase in dict.fromkeys(arm.phase for arm in scored)
            if (mine := [abs(arm.error_percent) for arm in scored if arm.phase == phase])
        },
        tolerance_percent=tolerance,
        within_tolerance=max(errors) <= tolerance + _ROUNDING_PERCENT if errors else None,
    )


def _emitted(arm: Arm) -> float:
    return 1.0 if arm.draft_tokens == 1 or arm.accept_length is None else arm.accept_length


def _measured_rate(arm: Arm) -> float:
    return _emitted(arm) / arm.measured.value


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
