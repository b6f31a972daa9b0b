"""Where a prediction comes from, and what it says when something is not known."""

import pytest
from emit_runs import entry, make_fit, make_machine, make_run

from nccltune import api
from nccltune.calibration import Request, calibrate
from nccltune.costmodel.profile import save_profile
from nccltune.errors import InputError, NoBasisError
from nccltune.schemas.points import Point

LL = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}


@pytest.fixture
def run(tmp_path):
    """Base 40/55/120 us, LL Ring 25/28/70 us at 14,336, 43,008 and 229,376 B; LL128 gave wrong results."""
    settings = [entry({}, [40, 55, 120]), entry(LL, [25, 28, 70]), entry({"NCCL_PROTO": "LL128"}, [1, 1, 1], usable=False, reason="wrong results")]  # fmt: skip
    machine = make_machine().model_copy(update={"topology": "rtx-pro-6000-x8"})
    return make_run(tmp_path / "run", make_fit(settings, best="LL Ring"), machine=machine)


def row(found, draft_tokens):
    return next(r for r in found.rows if r.draft_tokens == draft_tokens)


def test_a_run_gives_the_communication_of_its_best_setting(run):
    found = api.predict([3], run=run)
    assert found.setting.name == "LL Ring"
    # 123 x 28 us = 3.44 ms, and half an all-reduce for the logits, far beyond the largest size
    assert 3.44 < row(found, 3).comm_ms.value < 3.44 * 1.10
    base = row(api.predict([3], run=run, setting="base"), 3)
    assert base.comm_ms.value / row(found, 3).comm_ms.value == pytest.approx(55 / 28, rel=0.05)


def test_without_acceptance_everything_but_the_yield_is_given(run):
    found = api.predict([2, 3], run=run)
    assert found.best is None
    assert found.acceptance.survival == []
    for r in found.rows:
        known = r.draft_tokens == 1
        assert (r.tokens_per_s is not None) == known
        assert (r.accept_length is not None) == known
        assert r.break_even_accept_length.value >= 1
    assert row(found, 3).break_even_accept_length.value == pytest.approx(row(found, 3).cycle_ms.value / row(found, 1).cycle_ms.value)  # fmt: skip


def test_break_even_is_where_the_speedup_is_one(run):
    even = row(api.predict([3], run=run), 3).break_even_accept_length.value
    assert row(api.predict([3], run=run, accept_length=even), 3).speedup.value == pytest.approx(1.0)


def test_low_acceptance_means_do_not_speculate(run):
    found = api.predict(range(1, 9), run=run, accept_rates=[0.05, 0.01])
    assert found.best is not None
    assert (found.best.draft_tokens, found.best.speculate, found.best.tied_with) == (1, False, [])
    assert found.best.speedup.value == 1.0


def test_high_acceptance_speculates_and_names_ties(run):
    found = api.predict(range(1, 9), run=run, accept_rates=[0.95, 0.9, 0.86, 0.82, 0.78, 0.74, 0.7])
    assert found.best.draft_tokens > 3
    assert found.best.speculate
    assert 1 not in found.best.tied_with
    neighbour = {found.best.draft_tokens - 1, found.best.draft_tokens + 1}
    assert neighbour & set(found.best.tied_with)


def test_every_batch_size_has_its_best(run):
    found = api.predict([1, 2, 4], batch=[1, 8, 64], run=run, accept_length=1.6)
    assert [b.batch_size for b in found.best_by_batch] == [1, 8, 64]
    assert set(found.adaptive_config) == {"1", "8", "64"}
    speedups = [row_.speedup.value for row_ in found.rows if row_.draft_tokens == 4]
    assert speedups[0] > 0


def test_an_unusable_setting_is_refused_with_its_reason(run):
    with pytest.raises(InputError, match="not usable") as error:
        api.predict([3], run=run, setting="LL128")
    assert error.value.why == "wrong results"


def test_a_setting_without_any_algorithm_has_no_basis():
    with pytest.raises(NoBasisError):
        api.predict([3], setting="NCCL_ALGO=NVLS")


def test_a_gloo_run_is_not_taken_for_a_gpu_machine(tmp_path):
    path = make_run(tmp_path / "g", make_fit([entry({}, [400, 500, 900])], num_ranks=2), backend="gloo")
    found = api.predict([3], run=path)
    assert any("gloo" in w for w in found.warnings)
    assert found.ranks == 2
    assert found.findings == []  # nothing of the reference machine's overhead is claimed for this one


def test_a_profile_made_from_the_run_is_tight_there(run, tmp_path):
    points = (
        Point(phase="decode", batch_size=1, time_ms=13.0),
        Point(phase="verify", batch_size=1, draft_tokens=3, time_ms=20.0),
    )
    save_profile(calibrate(Request("kimi-k2.5", points, run=run)), tmp_path / "p.json")
    found = api.predict([3], run=run, profile=str(tmp_path / "p.json"), setting="base")
    assert row(found, 1).cycle_ms.value == pytest.approx(13.0, rel=0.02)
    assert row(found, 3).verify_ms.value == pytest.approx(20.0, rel=0.02)
    assert row(found, 3).verify_ms.source == "measured"
    # LL Ring: never an engine point, 123 x (40 - 25) us = 1.85 ms less at one token
    tuned = api.predict([3], run=run, profile=str(tmp_path / "p.json"))
    assert row(found, 1).cycle_ms.value - row(tuned, 1).cycle_ms.value == pytest.approx(1.85, rel=0.1)
    assert row(tuned, 3).verify_ms.source == "extrapolated"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ranks": 4}, "4 ranks"),
        ({"topology": "h200-x8"}, "h200-x8"),
        ({"quant": "fp8"}, "fp8"),
        ({"drafter": "kimi-k2.5-eagle3-mla"}, "drafter"),
    ],
)
def test_what_ifs_are_marked_and_never_measured(options, says):
    found = api.predict([3], **options)
    assert any(says in text for text in found.what_if)
    assert row(found, 3).cycle_ms.source != "measured"


def test_a_what_if_interval_is_wider_than_the_calibrated_one():
    def width(found):
        return row(found, 3).cycle_ms.high / row(found, 3).cycle_ms.low

    assert width(api.predict([3], quant="fp8")) > 2 * width(api.predict([3])) - 1


def test_another_weight_format_leaves_the_communication_alone():
    """fp8 of a model stored as int4: the ratio of the two settings and the scale of the all-reduce are no matter of weights."""
    as_stored, changed = api.predict([3]), api.predict([3], quant="fp8")
    assert changed.baseline.decode_ms.source == "analytic"
    for draft_tokens in (1, 3):
        ratio = row(changed, draft_tokens).comm_ms.value / row(as_stored, draft_tokens).comm_ms.value
        assert ratio == pytest.approx(1, abs=0.05)  # the smooth correction of the points, which no longer applies
    gain = [f.default_setting_baseline.decode_ms.value - f.baseline.decode_ms.value for f in (as_stored, changed)]
    assert gain[1] == pytest.approx(gain[0], rel=0.05)


def test_the_format_that_the_model_is_stored_in_is_no_what_if():
    found, plain = api.predict([3], quant="int4"), api.predict([3])
    assert found.what_if == []
    assert found.rows == plain.rows


def test_the_default_setting_is_left_out_where_nothing_tells_its_cost(tmp_path):
    """A run of LL Ring alone: no curve of the base, and no point of it."""
    settings = [entry(LL, [25, 28, 70])]
    machine = make_machine().model_copy(update={"topology": "rtx-pro-6000-x8"})
    run = make_run(tmp_path / "run", make_fit(settings, best="LL Ring"), machine=machine)
    assert api.predict([3], run=run, setting="LL Ring").default_setting_baseline is None


@pytest.mark.parametrize(
    "options",
    [
        {"draft_tokens": [0]}, {"draft_tokens": []}, {"draft_tokens": [1000]}, {"batch": [0]}, {"batch": [10**9]},
        {"model": "nosuch"}, {"topology": "nosuch"}, {"profile": "nosuch"}, {"setting": "nosuch"}, {"quant": "int3"},
        {"drafter": "qwen3-30b-a3b-eagle3"}, {"accept_length": 4.0}, {"accept_rates": [1.5]},
        {"batch": range(1, 2000), "draft_tokens": range(1, 200)},
    ],
)  # fmt: skip
def test_impossible_questions_are_refused(options):
    with pytest.raises(InputError):
        api.predict(**{"draft_tokens": [3], **options})
