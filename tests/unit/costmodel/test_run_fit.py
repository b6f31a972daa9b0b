"""Runs whose right answer is known: alpha 10 us and 1e-4 us/byte for the base, others beside it."""

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from synthetic_run import KIMI_BYTES, LL, SIMPLE, SIZES, TOKENS, choice, curve, line, make_run, measurement, repeats

from nccltune.costmodel.run_fit import fit_folder, fit_run
from nccltune.errors import InputError, QualityError
from nccltune.registry import load_model
from nccltune.schemas.fit import Fit, SettingFit
from nccltune.schemas.measurement import Failure, Rejected
from nccltune.schemas.setting import BASE, Setting

BASE_LINE = line(10.0, 1e-4)
QUIET = repeats([BASE_LINE(SIZES[0]) * f for f in (1.001, 0.999, 1.002, 0.998)])


@pytest.fixture(scope="module")
def kimi():
    return load_model("kimi-k2.5")


def of(fit: Fit, setting: Setting, timing: str = "in-forward") -> SettingFit:
    return next(s for s in fit.settings if s.setting.id == setting.id and s.timing == timing)


def test_curve_pieces_and_forward_are_those_of_the_known_line(tmp_path, kimi):
    fit = fit_run(make_run(tmp_path / "run", [*curve(BASE, BASE_LINE), *QUIET]), model=kimi)
    base = of(fit, BASE)
    assert [p.size_bytes for p in base.points] == SIZES
    assert len(base.pieces) == 1
    assert base.pieces[0].alpha_us == pytest.approx(10.0, rel=2e-3)
    assert base.pieces[0].us_per_byte == pytest.approx(1e-4, rel=5e-3)
    # A straight line is interpolated exactly; the monitor's median moves the first point only, which is never left out.
    assert base.leave_one_out is not None
    assert base.leave_one_out.num_points == len(SIZES) - 2
    assert base.leave_one_out.worst_percent < 0.1
    # 123 all-reduces of 3 x 14336 B: 123 x (10 + 4.3008) = 1758.998 us.
    assert base.forward_us["3"] == pytest.approx(1758.998, rel=1e-6)
    low, high = base.forward_interval_us["3"]
    assert low < 1758.998 < high
    assert fit.decode_tokens == TOKENS
    assert fit.best is None
    assert base.versus_base is not None
    assert base.versus_base.verdict == "base"


def test_faster_setting_wins_and_what_overlaps_it_is_tied(tmp_path, kimi):
    equal = Setting.make({"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"})
    rows = [
        *curve(BASE, BASE_LINE),
        *QUIET,
        *curve(LL, line(8.0, 0.8e-4)),
        *curve(equal, line(8.02, 0.8e-4)),
        *curve(SIMPLE, line(20, 1e-4)),
    ]
    fit = fit_run(make_run(tmp_path / "run", rows), model=kimi)
    assert fit.best == "LL"
    assert fit.tied_with_best == ["LL Ring"]
    assert [s.setting.name for s in fit.settings] == ["LL", "LL Ring", "base", "Simple"]
    versus = of(fit, LL).versus_base
    assert versus is not None
    # Both alpha and beta are 20% lower, so the sum over the forwards is.
    assert versus.percent == pytest.approx(-20.0, abs=0.2)
    assert versus.low_percent < versus.percent < versus.high_percent < 0
    assert versus.verdict == "faster"
    slow = of(fit, SIMPLE).versus_base
    assert slow is not None
    assert slow.verdict == "slower"


def test_a_gain_within_the_noise_of_the_machine_is_no_gain(tmp_path, kimi):
    noisy = repeats([BASE_LINE(SIZES[0]) * f for f in (1.1, 0.9, 1.12, 0.93)])
    rows = [*curve(BASE, BASE_LINE), *noisy, *curve(LL, line(9.6, 0.96e-4))]
    fit = fit_run(make_run(tmp_path / "run", rows), model=kimi)
    assert fit.best is None
    assert of(fit, LL).versus_base.verdict == "unclear"
    assert any("not quiet" in w for w in fit.warnings)


def test_the_luckiest_of_many_equal_settings_does_not_win(tmp_path, kimi):
    # 3.5% faster on one launch is beyond the 90% noise of a single comparison, but not for the fastest of 60.
    many = [Setting.make({"NCCL_MAX_NCHANNELS": str(n)}) for n in range(1, 61)]
    base = [*curve(BASE, BASE_LINE), *QUIET]
    rows = [
        row
        for n, s in enumerate(many)
        for row in curve(s, line(10.0 * (0.965 if n == 0 else 1.0), 0.965e-4 if n == 0 else 1e-4))
    ]
    assert fit_run(make_run(tmp_path / "one", [*base, *rows[: len(SIZES)]]), model=kimi).best is not None
    assert fit_run(make_run(tmp_path / "many", [*base, *rows]), model=kimi).best is None


def test_interval_holds_the_spread_from_launch_to_launch_and_has_a_floor(tmp_path, kimi):
    quiet = of(
        fit_run(make_run(tmp_path / "q", [*curve(BASE, BASE_LINE), *curve(LL, BASE_LINE), *QUIET]), model=kimi), LL
    ).points[0]
    wild = repeats([BASE_LINE(SIZES[0]) * f for f in (1.05, 0.95, 1.05, 0.95)])
    loud = of(
        fit_run(make_run(tmp_path / "l", [*curve(BASE, BASE_LINE), *curve(LL, BASE_LINE), *wild]), model=kimi), LL
    ).points[0]
    assert (quiet.high_us - quiet.low_us) / 2 >= 0.01 * quiet.time_us
    assert (loud.high_us - loud.low_us) > 2 * (quiet.high_us - quiet.low_us)


def test_wrong_results_in_any_timing_disqualify_the_setting(tmp_path, kimi):
    bad = measurement(LL, SIZES[3], None, timing="back-to-back", status="wrong_results", num_wrong=3, num_checked=9)
    rows = [*curve(BASE, BASE_LINE), *QUIET, *curve(LL, line(5.0, 0.5e-4)), bad]
    fit = fit_run(make_run(tmp_path / "run", rows), model=kimi)
    entry = of(fit, LL)
    assert not entry.usable
    assert entry.points == []
    assert "wrong results at 56 KiB" in entry.reason
    assert fit.best is None
    assert any("wrong results disqualify LL" in w for w in fit.warnings)


def test_setting_that_did_not_take_effect_is_not_credited(tmp_path, kimi):
    base = curve(BASE, BASE_LINE)
    note = Rejected(variable="NCCL_NTHREADS", requested="63", message="NCCL_NTHREADS=63: not a multiple of 32\nmore")
    threads = Setting.make({"NCCL_NTHREADS": "63"})
    idle = [
        measurement(
            threads, m.size_bytes, None, status="not_in_force", in_force=False, same_as=m.case_id, rejected=[note]
        )
        for m in base
    ]
    fit = fit_run(make_run(tmp_path / "run", [*base, *QUIET, *idle]), model=kimi)
    entry = of(fit, threads)
    assert (entry.usable, entry.same_as, fit.best) == (False, "base", None)
    assert entry.reason.startswith(
        "did not take effect at 14 KiB, 28 KiB, 42 KiB, 56 KiB and 3 more sizes: NCCL_NTHREADS=63: not a mult"
    )
    assert "\n" not in entry.reason


def test_shared_measurements_share_points_and_never_beat_what_they_are(tmp_path, kimi):
    ring = choice("Ring", "LL")
    base = curve(BASE, BASE_LINE, choice=ring)
    copies = [measurement(LL, m.size_bytes, m.median_us, same_as=m.case_id, choice=ring) for m in base]
    # The monitor moves the base's own first point by 5%: the copy must move with it.
    moved = repeats([BASE_LINE(SIZES[0]) * 1.05] * 3)
    fit = fit_run(make_run(tmp_path / "run", [*base, *copies, *moved]), model=kimi)
    assert of(fit, LL).same_as == "base"
    assert of(fit, LL).points == of(fit, BASE).points
    assert of(fit, LL).versus_base.verdict == "same"
    assert fit.best is None


def test_partial_sharing_names_no_twin_and_points_to_each_measurement(tmp_path, kimi):
    base = curve(BASE, BASE_LINE)
    mixed = [measurement(LL, m.size_bytes, m.median_us, same_as=m.case_id) for m in base[:3]]
    mixed += [measurement(LL, size, 5.0) for size in SIZES[3:]]
    fit = fit_run(make_run(tmp_path / "run", [*base, *mixed]), model=kimi)
    assert of(fit, LL).same_as is None
    assert [p.time_us for p in of(fit, LL).points[:3]] == [p.time_us for p in of(fit, BASE).points[:3]]
    assert of(fit, LL).points[3].time_us == pytest.approx(5.0)


def test_failure_where_the_base_works_makes_a_setting_unusable_and_a_shared_one_does_not(tmp_path, kimi):
    hang = Failure(kind="hang", message="rank 3 gave no answer")
    rows = [
        *curve(BASE, BASE_LINE),
        *QUIET,
        *curve(LL, line(5, 0.5e-4), SIZES[:-1]),
        measurement(LL, SIZES[-1], None, status="timeout", error=hang),
    ]
    fit = fit_run(make_run(tmp_path / "own", rows), model=kimi)
    assert not of(fit, LL).usable
    assert "timeout at 224 KiB: hang, rank 3" in of(fit, LL).reason
    big = 1 << 30
    memory = Failure(kind="out_of_memory", message="cannot allocate")
    both = [measurement(s, big, None, status="error", error=memory) for s in (BASE, LL)]
    rows = [*curve(BASE, BASE_LINE), *QUIET, *curve(LL, line(5, 0.5e-4)), *both]
    assert fit_run(make_run(tmp_path / "shared", rows), model=kimi).best == "LL"


def test_setting_without_all_decode_sizes_is_usable_but_not_ranked(tmp_path, kimi):
    skipped = [measurement(LL, size, None, status="skipped", in_force=None) for size in SIZES[2:]]
    rows = [*curve(BASE, BASE_LINE), *curve(LL, line(1, 1e-5), SIZES[:2]), *skipped]
    fit = fit_run(make_run(tmp_path / "run", rows, status="time_limit"), model=kimi)
    entry = of(fit, LL)
    assert (entry.usable, entry.versus_base, list(entry.forward_us), fit.best) == (True, None, ["1", "2"], None)
    assert entry.reason == "measured at 2 of the 7 sizes of the base"
    assert any("time_limit" in w for w in fit.warnings)


def test_in_forward_is_preferred_and_other_timings_are_kept_beside_it(tmp_path, kimi):
    rows = [*curve(BASE, BASE_LINE), *curve(BASE, line(8.0, 0.9e-4), timing="back-to-back")]
    run = make_run(tmp_path / "run", rows, timings=["in-forward", "back-to-back"])
    fit = fit_run(run, model=kimi)
    assert fit.timing == "in-forward"
    assert [s.timing for s in fit.settings] == ["in-forward", "back-to-back"]
    assert of(fit, BASE, "back-to-back").pieces[0].alpha_us == pytest.approx(8.0)
    assert not any("understate" in w for w in fit.warnings)
    chosen = fit_run(run, model=kimi, timing="back-to-back")
    assert chosen.settings[0].timing == "back-to-back"
    assert any("understate" in w and "5 to 42%" in w for w in chosen.warnings)
    with pytest.raises(InputError, match="no eager times"):
        fit_run(run, model=kimi, timing="eager")


def test_without_a_model_the_times_are_ranked(tmp_path):
    rows = [*curve(BASE, BASE_LINE), *QUIET, *curve(LL, line(7, 0.7e-4))]
    fit = fit_run(make_run(tmp_path / "run", rows, tokens=[]))
    assert (fit.best, fit.model, of(fit, LL).forward_us) == ("LL", None, {})
    assert of(fit, LL).versus_base.percent == pytest.approx(-30, abs=0.3)
    assert any(w.startswith("no model") for w in fit.warnings)


def test_sizes_beside_the_tokens_are_not_extrapolated_to(tmp_path, kimi):
    rows = curve(BASE, BASE_LINE, [4 * KIMI_BYTES, 8 * KIMI_BYTES])
    fit = fit_run(make_run(tmp_path / "run", rows), model=kimi)
    assert list(of(fit, BASE).forward_us) == ["4", "6", "8"]


def test_protocol_change_starts_a_new_piece(tmp_path, kimi):
    rows = [
        measurement(
            BASE,
            size,
            8 + 4e-5 * size if size <= 60000 else 20 + 5e-6 * size,
            choice=choice("Ring", "LL" if size <= 60000 else "Simple"),
        )
        for size in SIZES
    ]
    pieces = of(fit_run(make_run(tmp_path / "run", rows), model=kimi), BASE).pieces
    assert [p.proto for p in pieces] == ["LL", "Simple"]
    assert [p.alpha_us for p in pieces] == pytest.approx([8, 20])
    assert [p.us_per_byte for p in pieces] == pytest.approx([4e-5, 5e-6])


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([], "no all-reduce times"),
        (
            [measurement(BASE, SIZES[0], None, status="error", error=Failure(kind="cuda", message="no device"))],
            "no device",
        ),
        ([measurement(BASE, SIZES[0], 0.0)], "no all-reduce times"),
        ([*curve(BASE, BASE_LINE), measurement(BASE, 4, None, status="wrong_results")], "wrong results"),
    ],
)
def test_nothing_usable_is_a_quality_error(tmp_path, rows, match):
    with pytest.raises(QualityError, match=match):
        fit_run(make_run(tmp_path / "run", rows))


def test_gloo_run_says_what_it_is(tmp_path):
    fit = fit_run(make_run(tmp_path / "run", curve(BASE, line(200, 1e-3), timing="back-to-back"), backend="gloo"))
    assert any("gloo" in w for w in fit.warnings)


def test_broken_links_between_cases_do_not_end_the_fit(tmp_path):
    first, second = measurement(BASE, SIZES[0], 10.0), measurement(LL, SIZES[0], 11.0)
    circle = [
        first.model_copy(update={"same_as": second.case_id}),
        second.model_copy(update={"same_as": first.case_id}),
    ]
    lost = measurement(SIMPLE, SIZES[0], 12.0, same_as="not there")
    fit = fit_run(make_run(tmp_path / "run", [*circle, lost]))
    assert of(fit, SIMPLE).points[0].time_us == pytest.approx(12.0)
    assert of(fit, LL).usable


def test_fit_folder_writes_what_it_returns_and_checks_its_words(tmp_path):
    run = make_run(tmp_path / "run", curve(BASE, BASE_LINE), model="kimi-k2.5")
    fit = fit_folder(run.path)
    assert fit.model == "kimi-k2.5"
    assert run.load_fit() == fit
    with pytest.raises(InputError, match="no timing is called"):
        fit_folder(run.path, timing="graph")
    other = make_run(tmp_path / "other", curve(BASE, BASE_LINE), model="a-model-of-mine")
    with pytest.raises(InputError, match="a-model-of-mine"):
        fit_folder(other.path)
    assert fit_folder(other.path, model="kimi-k2.5").model == "kimi-k2.5"


def test_a_large_run_is_fitted_in_seconds(kimi, monkeypatch, tmp_path):
    # 1,000 settings x 10 sizes; the store's reading is not what is timed here. 100,000 take ten times as long.
    sizes = [KIMI_BYTES * t for t in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)]
    template = {size: measurement(BASE, size, BASE_LINE(size)) for size in sizes}
    rows = []
    for n in range(1000):
        setting = Setting(name=f"s{n}", env={"NCCL_MAX_NCHANNELS": str(n + 1)}) if n else BASE
        rows += [m.model_copy(update={"setting": setting, "case_id": f"{n}-{size}"}) for size, m in template.items()]
    run = make_run(tmp_path / "run", [])
    monkeypatch.setattr(run, "all_measurements", lambda: rows)
    began = time.perf_counter()
    fit = fit_run(run, model=kimi)
    assert len(fit.settings) == 1000
    assert time.perf_counter() - began < 3.0


@pytest.mark.parametrize("bad", [-20.0, 0.0])
def test_broken_times_are_named_and_left_out(tmp_path, bad):
    with pytest.raises(QualityError, match=r"1 case .* zero, negative or no numbers"):
        fit_run(make_run(tmp_path / "all", [measurement(BASE, SIZES[0], bad)]))
    rows = [*curve(BASE, BASE_LINE), *QUIET, measurement(LL, SIZES[0], bad)]
    assert any("zero, negative or no numbers" in text for text in fit_run(make_run(tmp_path / "some", rows)).warnings)


def test_settings_that_took_no_effect_are_not_called_unmeasured(tmp_path):
    with pytest.raises(QualityError, match="did not take effect"):
        fit_run(make_run(tmp_path / "run", [measurement(LL, SIZES[0], 20.0, in_force=False)]))
