"""What to look at where predictions are off: each finding names the cause that fits, its evidence and the next step."""

from collections.abc import Sequence

from nccltune.schemas.validation import Arm, Ranking

_NO_DIFFERENCE_PERCENT = 2.0
_EXPECTED_PERCENT = 5.0
_CONTEXTS_APART = 1.5  # below, the share of the KV cache is too alike to show a trend


def findings(arms: Sequence[Arm], rankings: Sequence[Ranking], tolerance: float) -> list[str]:
    """List what fits the errors, the most telling first."""
    scored = [arm for arm in arms if not arm.used_for_calibration]
    found = [*_no_difference(arms), *_one_setting(scored, tolerance), *_phases(scored, tolerance), *_contexts(scored, tolerance)]  # fmt: skip
    wrong = [pair for pair in rankings if not pair.right]
    found += [
        f"ranked wrong: {p.phase} at batch {p.batch_size}, {p.draft_tokens} draft tokens: {p.slower.name} was {p.measured_percent:.1f}% slower than "
        f"{p.faster.name}, predicted {p.predicted_percent:+.1f}%"
        for p in wrong[:3]
    ]
    return found


def _no_difference(arms: Sequence[Arm]) -> list[str]:
    """Settings that should differ and do not: NCCL does not carry the all-reduce."""
    cases: dict[tuple[object, ...], list[Arm]] = {}
    for arm in arms:
        cases.setdefault((arm.phase, arm.batch_size, arm.draft_tokens, arm.context_tokens, arm.engine), []).append(arm)
    apart = [g for g in cases.values() if len(g) > 1 and _spread([a.predicted.value for a in g]) > _EXPECTED_PERCENT]
    same = [g for g in apart if _spread([a.measured.value for a in g]) < _NO_DIFFERENCE_PERCENT]
    if not same or len(same) < len(apart):
        return []
    return [
        f"in all {len(same)} cases where settings should differ by more than {_EXPECTED_PERCENT:.0f}%, they were measured within {_NO_DIFFERENCE_PERCENT:.0f}%: "
        "NCCL does not carry these all-reduces (the engine's own kernel does), or the variables did not reach the engine. "
        "Look at the server log, or at the kernel names of a trace ('nccltune validate trace')"
    ]


def _one_setting(scored: Sequence[Arm], tolerance: float) -> list[str]:
    """All arms of one setting off to one side while another setting is right."""
    by_setting: dict[str, list[Arm]] = {}
    for arm in scored:
        by_setting.setdefault(arm.setting.id, []).append(arm)
    off = {s: _one_sided(g, tolerance) for s, g in by_setting.items()}
    if len(off) < 2 or all(off.values()):
        return []
    return [
        f"only setting {by_setting[s][0].setting.name} is off ({side}, mean {_mean_error(by_setting[s]):+.1f}%): was it in force in the server "
        "(NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=TUNING), and did the run measure it with the same base?"
        for s, side in off.items()
        if side
    ]


def _phases(scored: Sequence[Arm], tolerance: float) -> list[str]:
    """Decode right and drafted rows wrong, or the reverse."""
    plain = [arm for arm in scored if arm.phase == "decode"]
    drafted = [arm for arm in scored if arm.phase in ("verify", "cycle")]
    off_plain, off_drafted = _mape(plain) > tolerance, _mape(drafted) > tolerance
    if off_drafted and not off_plain:
        growth = _by(drafted, lambda arm: arm.draft_tokens)
        return [
            f"{'plain decode is right, ' if plain else ''}verify and cycle are off ({growth}): the verify overhead or the drafter. Calibrate on one cycle of another "
            "draft-token count, and check that a CUDA graph covers the verify shape"
        ]
    if off_plain:
        growth = _by(plain, lambda arm: arm.batch_size)
        return [
            f"plain decode is off ({growth}): weights, attention or host. Calibrate on decode at the smallest and the largest batch, and check "
            "that decode runs in a CUDA graph (the log says 'cuda graph: True')"
        ]
    return []


def _contexts(scored: Sequence[Arm], tolerance: float) -> list[str]:
    contexts = {arm.context_tokens for arm in scored}
    if len(contexts) < 2 or max(contexts) < _CONTEXTS_APART * min(contexts) or _mape(scored) <= tolerance:
        return []
    return [f"error by context: {_by(scored, lambda arm: arm.context_tokens)}: a trend here is the KV cache's share"]


def _one_sided(arms: Sequence[Arm], tolerance: float) -> str:
    errors = [arm.error_percent for arm in arms]
    if min(errors) > tolerance:
        return "predicted too slow"
    return "predicted too fast" if max(errors) < -tolerance else ""


def _by(arms: Sequence[Arm], of: object) -> str:
    assert callable(of)
    groups: dict[int, list[Arm]] = {}
    for arm in arms:
        groups.setdefault(of(arm), []).append(arm)
    return ", ".join(f"{key}: {_errors(groups[key])}" for key in sorted(groups)[:8])


def _errors(arms: Sequence[Arm]) -> str:
    """Their range: a mean of errors to both sides would look like none."""
    low, high = min(arm.error_percent for arm in arms), max(arm.error_percent for arm in arms)
    return f"{low:+.1f}%" if f"{low:.1f}" == f"{high:.1f}" else f"{low:+.1f}% to {high:+.1f}%"


def _mean_error(arms: Sequence[Arm]) -> float:
    return sum(arm.error_percent for arm in arms) / len(arms)


def _mape(arms: Sequence[Arm]) -> float:
    return sum(abs(arm.error_percent) for arm in arms) / len(arms) if arms else 0.0


def _spread(values: Sequence[float]) -> float:
    return 100 * (max(values) / min(values) - 1)
