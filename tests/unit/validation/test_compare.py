"""The score of a validation, with numbers worked out by hand."""

import pytest

from nccltune.schemas.common import Value
from nccltune.schemas.points import Point
from nccltune.schemas.setting import BASE, Setting, parse_setting
from nccltune.schemas.validation import Arm, Measured
from nccltune.validation.compare import rank_settings, regrets, summarize
from nccltune.validation.findings import findings
from nccltune.validation.observation import Settings, measured_of, observe

FAST, SLOW = Setting.make({"NCCL_PROTO": "LL"}), Setting.make({"NCCL_PROTO": "Simple"})


def arm(predicted, measured, *, phase="cycle", setting=BASE, batch=1, width=3, length=2.0, used=False, half=0.1):
    return Arm(
        phase=phase, setting=setting, batch_size=batch, draft_tokens=width, context_tokens=1024, accept_length=length if width > 1 else None,
        predicted=Value(value=predicted, low=predicted * (1 - half), high=predicted * (1 + half), source="extrapolated"),
        measured=Measured(value=measured, low=measured, high=measured), error_percent=100 * (predicted / measured - 1),
        inside_interval=predicted * (1 - half) <= measured <= predicted * (1 + half), used_for_calibration=used,
    )  # fmt: skip


def score(arms, tolerance=5.0):
    return summarize(arms, 0, rank_settings(arms), regrets(arms), tolerance)


def test_only_arms_that_were_not_calibrated_on_are_scored():
    # errors +10%, -5%, and a calibrated one that is far off
    found = score([arm(11, 10), arm(19, 20, half=0.01), arm(50, 10, used=True, batch=4)])
    assert (found.num_scored, found.num_used_for_calibration) == (2, 1)
    assert found.mape_percent == pytest.approx(7.5)
    assert found.worst_percent == pytest.approx(10)
    assert found.coverage_percent == 50  # 10 lies in [9.9, 12.1]; 20 not in [18.81, 19.19]
    assert found.within_tolerance is False


@pytest.mark.parametrize(("tolerance", "met"), [(4.9, False), (5.1, True)])
def test_one_arm_beyond_the_tolerance_fails_whatever_the_mean(tolerance, met):
    # errors +5%, 0, 0, 0: the mean is 1.25%
    arms = [arm(10.5, 10), *(arm(10, 10, batch=b) for b in (2, 4, 8))]
    assert score(arms, tolerance).within_tolerance is met


def test_an_error_of_the_tolerance_is_within_it():
    assert 100 * (1.07 / 1 - 1) > 7  # 7.000000000000006
    assert score([arm(1.07, 1)], 7.0).within_tolerance is True


def test_nothing_scored_leaves_everything_unknown():
    found = score([arm(10, 10, used=True)])
    assert found.num_scored == 0
    assert found.mape_percent is found.coverage_percent is found.worst_percent is found.within_tolerance is None
    assert found.settings_ranked_right is found.regret_percent is None


def test_settings_are_ranked_only_where_they_were_measured_apart():
    near = [arm(10, 10.0, setting=FAST), arm(9, 10.1, setting=BASE)]
    assert rank_settings(near) == []
    assert score(near).settings_ranked_right is None
    # 2% on paper, 2.0000000000000018% in floating point
    assert rank_settings([arm(10, 5.0, setting=FAST), arm(9, 5.1, setting=BASE)]) == []
    right = [arm(10, 10, setting=FAST), arm(11, 12, setting=SLOW)]
    assert score(right).settings_ranked_right is True
    # measured 20% slower, predicted 10% faster
    wrong = [arm(10, 10, setting=FAST), arm(9, 12, setting=SLOW)]
    (pair,) = rank_settings(wrong)
    assert (pair.faster, pair.slower, pair.right) == (FAST, SLOW, False)
    assert pair.measured_percent == pytest.approx(20)
    assert pair.predicted_percent == pytest.approx(-10)
    assert score(right + [a.model_copy(update={"batch_size": 4}) for a in wrong]).settings_ranked_right is False


def test_settings_that_are_predicted_equal_are_not_ranked_right():
    assert score([arm(10, 10, setting=FAST), arm(10, 12, setting=SLOW)]).settings_ranked_right is False


def test_other_batches_widths_phases_and_contexts_are_not_compared():
    assert rank_settings([arm(10, 10, setting=FAST), arm(11, 12, setting=SLOW, batch=2)]) == []
    assert rank_settings([arm(10, 10, setting=FAST), arm(11, 12, setting=SLOW, width=4)]) == []
    assert rank_settings([arm(10, 10, setting=FAST), arm(11, 12, setting=SLOW, phase="verify")]) == []


def test_two_calibrated_arms_say_nothing_about_ranking():
    both = [arm(10, 10, setting=FAST, used=True), arm(11, 12, setting=SLOW, used=True)]
    assert rank_settings(both) == []
    assert len(rank_settings([both[0], both[1].model_copy(update={"used_for_calibration": False})])) == 1


@pytest.mark.parametrize(
    ("contexts", "told"), [((182, 187), False), ((200, 4000), True), ((0, 4000), True), ((0, 0), False)]
)
def test_a_trend_over_contexts_needs_contexts_that_differ(contexts, told):
    arms = [arm(10, 20).model_copy(update={"context_tokens": c}) for c in contexts]
    assert any("error by context" in text for text in findings(arms, [], 5.0)) is told


def test_regret_is_what_the_predicted_choice_loses_in_measured_tokens():
    # measured tokens per ms: 1/10 = 0.1, 2/19 = 0.1053, 2.4/20 = 0.12; predicted: 0.1, 2/16 = 0.125, 2.4/20.5 = 0.117
    arms = [
        arm(10, 10, phase="decode", width=1),
        arm(16, 19, width=3, length=2.0),
        arm(20.5, 20, width=4, length=2.4),
    ]
    (lost,) = regrets(arms)
    assert (lost.draft_tokens, lost.chosen_draft_tokens, lost.best_draft_tokens) == ([1, 3, 4], 3, 4)
    assert lost.regret_percent == pytest.approx(100 * (1 - (2 / 19) / 0.12))


def test_regret_needs_two_counts_with_a_known_accept_length():
    assert regrets([arm(10, 10, phase="decode", width=1), arm(16, 19, length=None)]) == []
    assert regrets([arm(10, 10), arm(12, 12, width=4, batch=2)]) == []
    assert regrets([arm(10, 10, phase="verify"), arm(12, 12, width=4, phase="verify")]) == []


def test_the_worst_regret_counts():
    good = [arm(10, 10, phase="decode", width=1), arm(16, 16)]
    bad = [arm(10, 10, phase="decode", width=1, batch=4), arm(16, 40, batch=4)]
    # predicted 2/16 > 1/10, measured 2/40 = 0.05 against 0.1
    assert score([*good, *bad]).regret_percent == pytest.approx(50)


def test_one_sample_has_no_interval_few_have_their_range_many_a_bootstrap():
    assert measured_of([7.0]) == Measured(value=7, low=7, high=7, num_samples=1)
    assert measured_of([7.0, 8.0]) == Measured(value=7.5, low=7, high=8, num_samples=2)
    many = measured_of([7.0] * 50 + [9.0])
    assert (many.value, many.low, many.high) == (7, 7, 7)


def test_spellings_that_mean_the_same_to_an_all_reduce_are_one_setting():
    run = Setting.make({"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}, "slow")
    settings = Settings([BASE, run], {"NCCL_NVLS_ENABLE": "0"})
    for text in ("NCCL_PROTO=Simple;NCCL_ALGO=allreduce:ring", "NCCL_ALGO=ring;NCCL_PROTO=simple;NCCL_NVLS_ENABLE=0",
                 "NCCL_ALGO=ring,tree;allreduce:ring;NCCL_PROTO=LL,Simple;allreduce:Simple"):  # fmt: skip
        assert settings.priced_as(parse_setting(text)).name == "slow"
    assert settings.priced_as(parse_setting("NCCL_NVLS_ENABLE=0")).name == "base"
    for text in ("NCCL_PROTO=Simple", "NCCL_PROTO=Simple;NCCL_ALGO=tree", "NCCL_PROTO=Simple;NCCL_ALGO=allgather:ring", "NCCL_NVLS_ENABLE=1"):  # fmt: skip
        assert settings.priced_as(parse_setting(text)).name not in ("slow", "base")


def test_rows_of_one_arm_are_joined_and_one_calibrate_row_marks_them_all():
    point = Point(phase="cycle", batch_size=1, draft_tokens=3, time_ms=7, accept_length=2)
    rows = [point, point.model_copy(update={"time_ms": 9, "accept_length": 3, "use": "calibrate"}), point.model_copy(update={"context_tokens": 8000})]  # fmt: skip
    joined, other = observe(rows, Settings([BASE], {}), 4096)
    assert (joined.measured.value, joined.measured.num_samples, joined.accept_length) == (8, 2, 2.5)
    assert joined.is_for_calibration
    assert (other.context_tokens, other.is_for_calibration) == (8000, False)


def test_settings_that_make_no_difference_point_at_the_engines_own_kernel():
    arms = [arm(10, 12, setting=BASE), arm(13, 12.1, setting=SLOW), arm(8, 12, setting=FAST)]
    assert any("does not carry" in text for text in findings(arms, rank_settings(arms), 5))
    arms = [arm(10, 10, setting=BASE), arm(13, 12.9, setting=SLOW)]
    assert findings(arms, rank_settings(arms), 5) == []


def test_one_setting_off_to_one_side_asks_whether_it_was_in_force():
    arms = [arm(10, 10, batch=b) for b in (1, 4)] + [arm(10, 13, setting=FAST, batch=b) for b in (1, 4)]
    assert any("only setting LL is off" in text for text in findings(arms, [], 5))


def test_drafted_rows_off_while_decode_is_right_point_at_overhead_or_drafter():
    arms = [arm(10, 10, phase="decode", width=1), arm(15, 20), arm(14, 20, width=4)]
    (found,) = findings(arms, [], 5)
    assert "3: -25.0%, 4: -30.0%" in found
