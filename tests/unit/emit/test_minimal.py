"""Gains with intervals, and which variables earn their place."""

import pytest
from emit_runs import DECODE, SET, curve, entry, make_fit, tuned_fit

from nccltune.emit.gain import compare
from nccltune.emit.minimal import minimal_set
from nccltune.emit.selection import parse_objective, select, sizes_that_count
from nccltune.errors import InputError, QualityError
from nccltune.schemas.setting import Setting

FULL = Setting(name="tuned", env=SET)


def test_compare_by_hand():
    # 100 [99, 101] against 90 [89.1, 90.9]: gain 10%, half width sqrt(1^2 + 0.9^2) = 1.3454
    gain = compare(curve((100, 100, 100)), curve((90, 90, 90)))
    assert gain.percent == pytest.approx(10)
    assert gain.low == pytest.approx(10 - 1.34536, abs=1e-4)
    assert gain.high == pytest.approx(10 + 1.34536, abs=1e-4)
    assert (gain.num_sizes, gain.from_bytes, gain.to_bytes) == (3, DECODE[0], DECODE[2])
    assert gain.is_gain
    assert not gain.is_loss


def test_compare_is_the_mean_over_common_sizes_and_none_without_any():
    # 50%, 0% and -50%: mean 0
    assert compare(curve((10, 10, 10)), curve((5, 10, 15))).percent == pytest.approx(0)
    assert compare(curve((10,)), []) is None
    assert compare(curve((10,)), curve((5,)), lambda size: size > 10**9) is None


def test_each_kept_variable_has_its_own_gain_and_the_idle_one_goes():
    found = minimal_set(tuned_fit(), FULL, lambda size: size in DECODE)
    assert set(found.kept) == {"NCCL_ALGO", "NCCL_PROTO"}
    assert set(found.dropped) == {"NCCL_BUFFSIZE"}
    # without Ring 15/15/30 us, with it 10/10/20: a third
    assert found.kept["NCCL_ALGO"].gain.percent == pytest.approx(100 / 3)
    # without LL: 18/18/36 against LL Ring 10.02/10.02/20.04 -> 44.33%
    assert found.kept["NCCL_PROTO"].gain.percent == pytest.approx(100 * 7.98 / 18)
    assert found.unproven == []


def test_a_drop_needs_a_measured_smaller_set():
    fit = make_fit([entry({}, (20, 20, 40)), entry(SET, (10, 10, 20), name="tuned")], best="tuned")
    found = minimal_set(fit, FULL)
    # BUFFSIZE acts on Simple only, so LL alone rules it out; nothing is known of the other two.
    assert set(found.kept) == {"NCCL_ALGO", "NCCL_PROTO"}
    assert found.unproven == ["NCCL_ALGO", "NCCL_PROTO"]
    assert str(found.kept["NCCL_ALGO"]) == "not separately measured"
    assert "Simple only" in found.dropped["NCCL_BUFFSIZE"]


def test_two_variables_that_replace_each_other_are_not_both_dropped():
    # either alone is enough; neither is not: dropping both would lose everything
    env = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}
    fit = make_fit(
        [
            entry({}, (20, 20, 40)),
            entry(env, (10, 10, 20)),
            entry({"NCCL_ALGO": "Ring"}, (10, 10, 20)),
            entry({"NCCL_PROTO": "LL"}, (10, 10, 20)),
        ]
    )
    found = minimal_set(fit, Setting.make(env))
    assert len(found.kept) == 1
    assert len(found.dropped) == 1
    (kept,) = found.kept.values()
    assert kept.gain.percent == pytest.approx(50)


def test_a_fixed_channel_count_stands_or_falls_as_one():
    env = {"NCCL_PROTO": "LL", "NCCL_MIN_NCHANNELS": "16", "NCCL_MAX_NCHANNELS": "16"}
    fit = make_fit([entry({}, (20, 20, 40)), entry(env, (10, 10, 20)), entry({"NCCL_PROTO": "LL"}, (15, 15, 30))])
    found = minimal_set(fit, Setting.make(env))
    assert found.dropped == {}
    assert found.kept["NCCL_MIN_NCHANNELS"] == found.kept["NCCL_MAX_NCHANNELS"]
    assert found.kept["NCCL_MIN_NCHANNELS"].gain.percent == pytest.approx(100 / 3)


def test_a_variable_that_makes_it_slower_goes():
    env = {"NCCL_PROTO": "LL", "NCCL_NTHREADS": "64"}
    fit = make_fit([entry({}, (20, 20, 40)), entry(env, (12, 12, 24)), entry({"NCCL_PROTO": "LL"}, (10, 10, 20))])
    assert set(minimal_set(fit, Setting.make(env)).kept) == {"NCCL_PROTO"}


def test_unusable_curves_are_no_evidence():
    env = {"NCCL_PROTO": "LL", "NCCL_NTHREADS": "512"}
    fit = make_fit(
        [
            entry({}, (20, 20, 40)),
            entry(env, (10, 10, 20)),
            entry({"NCCL_PROTO": "LL"}, (10,), usable=False, reason="wrong results"),
        ]
    )
    assert minimal_set(fit, Setting.make(env)).unproven == ["NCCL_NTHREADS", "NCCL_PROTO"]


def test_select_best_named_and_by_objective():
    fit = tuned_fit(prefill=(100.0, 149.0))
    best = select(fit, "best", parse_objective(None))
    assert best.setting.name == "tuned"
    assert best.decode.percent == pytest.approx(50)
    assert best.prefill.percent == pytest.approx(-49)
    # Ring: 10% at decode and 0% at prefill scores 5; the tuned set 50 and -49 scores 0.5
    assert select(fit, "best", parse_objective("both:0.5")).setting.env == {"NCCL_ALGO": "Ring"}
    assert select(fit, "best", parse_objective("prefill")).setting.env == {}
    assert select(fit, "LL Ring", parse_objective(None)).setting.env == {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}
    assert select(fit, "NCCL_ALGO=Ring", parse_objective(None)).entry is not None
    with pytest.raises(QualityError, match="not usable"):
        select(fit, "Simple", parse_objective(None))
    unknown = select(fit, "NCCL_NTHREADS=128", parse_objective(None))
    assert unknown.entry is None
    assert "not measured in this run" in unknown.notes[0]


def test_objective_needs_prefill_sizes_to_judge_them():
    fit = make_fit([entry({}, (20, 20, 40)), entry(SET, (10, 10, 20))])
    with pytest.raises(QualityError, match="no setting can be judged"):
        select(fit, "best", parse_objective("both:0.5"))


@pytest.mark.parametrize("text", ["x", "both:2", "both:x", "both:-1", "decode:1", "both:nan"])
def test_bad_objectives(text):
    with pytest.raises(InputError, match="objective"):
        parse_objective(text)


def test_a_variable_stands_or_falls_by_the_sizes_that_the_objective_counts():
    # 8 channels: nothing at decode (30 against 30), 10% at prefill (90 against 100). Fixed channels count at prefill only.
    channels = {"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "8"}
    env = {"NCCL_PROTO": "Simple", **channels}
    fit = make_fit(
        [entry({}, (40, 40, 80, 120)), entry({"NCCL_PROTO": "Simple"}, (30, 30, 60, 100)), entry(env, (30, 30, 60, 90))]
    )
    limit = DECODE[-1]

    def kept(objective):
        return set(minimal_set(fit, Setting.make(env), *sizes_that_count(parse_objective(objective), limit)).kept)

    assert kept("prefill") == set(env)
    assert kept("both:0.9") == set(env)
    assert kept("decode") == {"NCCL_PROTO"}
