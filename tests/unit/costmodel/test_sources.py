"""Where a number says that it came from: a sum is as good as its weakest part, and only its own point makes it measured."""

import pytest
from emit_runs import entry, make_fit, make_machine, make_run

from nccltune import api
from nccltune.calibration import Request, calibrate
from nccltune.costmodel.basis import Question
from nccltune.costmodel.prediction import predict
from nccltune.errors import InputError
from nccltune.schemas.common import SOURCES
from nccltune.schemas.points import Point

DECODE = Point(phase="decode", batch_size=1, time_ms=12.0, context_tokens=1024)
VERIFY = Point(phase="verify", batch_size=1, draft_tokens=4, time_ms=20.0, context_tokens=1024)
CYCLE = Point(phase="cycle", batch_size=1, draft_tokens=4, time_ms=22.0, context_tokens=1024)


def sources(found, column):
    return {(r.batch_size, r.draft_tokens): getattr(r, column).source for r in found.rows}


def calibrated(*points):
    return calibrate(Request("kimi-k2.5", points, topology="rtx-pro-6000-x8"))


def test_without_engine_points_a_sum_is_no_better_than_its_assumed_overhead():
    found = api.predict([1, 3], model="qwen3-30b-a3b", topology="h200-x2")
    assert sources(found, "overhead_ms")[1, 3] == "assumed"
    assert sources(found, "verify_ms") == {(1, 1): "analytic", (1, 3): "assumed"}
    for r in found.rows:
        parts = [r.comm_ms, r.compute_ms, *([r.overhead_ms] if r.draft_tokens > 1 else [])]
        assert SOURCES.index(r.verify_ms.source) == max(SOURCES.index(p.source) for p in parts)


def test_one_rank_has_no_communication_that_anyone_measured():
    found = api.predict([1, 3], model="qwen3-30b-a3b", topology="h200-x2", ranks=1)
    assert {r.comm_ms.value for r in found.rows} == {0.0}
    assert set(sources(found, "comm_ms").values()) == {"analytic"}


def test_decode_points_tell_nothing_of_a_verify():
    found = predict(Question(profile=calibrated(DECODE)), [1, 4])
    assert sources(found, "verify_ms") == {(1, 1): "measured", (1, 4): "assumed"}


def test_a_verify_point_does_not_measure_the_cycle_and_a_cycle_point_does():
    found = predict(Question(profile=calibrated(DECODE, VERIFY)), [4])
    assert (sources(found, "verify_ms")[1, 4], sources(found, "cycle_ms")[1, 4]) == ("measured", "assumed")
    found = predict(Question(profile=calibrated(DECODE, CYCLE)), [4])
    assert sources(found, "cycle_ms")[1, 4] == "measured"
    assert sources(found, "verify_ms")[1, 4] not in ("measured", "interpolated")


def test_as_many_tokens_in_another_shape_are_not_the_measured_ones():
    """2 requests of 2 draft tokens are 4 tokens, as 1 of 4: other KV caches, another draft."""
    found = predict(Question(profile=calibrated(DECODE, VERIFY)), [2, 4], [1, 2])
    assert sources(found, "verify_ms")[1, 4] == "measured"
    assert sources(found, "verify_ms")[2, 2] == "interpolated"


def test_curves_of_another_timing_are_not_taken_for_those_in_a_forward(tmp_path):
    """A run keeps back-to-back times beside the in-forward ones, under the same names and later in the file."""
    inside = entry({}, [40, 55, 120])
    fit = make_fit([inside], timing="in-forward")
    faster = entry({}, [20, 25, 60]).model_copy(update={"timing": "back-to-back"})
    both = fit.model_copy(update={"settings": [inside.model_copy(update={"timing": "in-forward"}), faster]})
    machine = make_machine().model_copy(update={"topology": "rtx-pro-6000-x8"})
    alone, mixed = (
        api.predict([1, 3], run=make_run(tmp_path / name, made, machine=machine))
        for name, made in (("alone", fit), ("both", both))
    )
    assert [r.comm_ms for r in mixed.rows] == [r.comm_ms for r in alone.rows]
    assert mixed.rows[0].comm_ms.value > 123 * 40e-3


def test_a_run_on_another_machine_is_a_what_if_and_wide(tmp_path):
    machine = make_machine().model_copy(update={"topology": "rtx-pro-6000-x8"})
    run = make_run(tmp_path / "run", make_fit([entry({}, [40, 55, 120])]), machine=machine)
    own, borrowed = api.predict([1], run=run), api.predict([1], run=run, topology="h200-x8")
    assert any("rtx-pro-6000-x8" in text for text in borrowed.what_if)
    assert own.what_if == []
    assert SOURCES.index(borrowed.rows[0].comm_ms.source) >= SOURCES.index("extrapolated")
    width = [r.comm_ms.high / r.comm_ms.low for r in (own.rows[0], borrowed.rows[0])]
    assert width[1] > 1.5 * width[0]


@pytest.mark.parametrize("setting", ["NCCL_PROTO=Simple", "NCCL_BUFFSIZE=1M"])
def test_a_setting_that_nobody_measured_makes_the_sum_assumed(setting):
    found = api.predict([1, 3], setting=setting)
    assert set(sources(found, "verify_ms").values()) == {"assumed"}


def test_a_run_whose_machine_file_is_not_here_can_be_asked_with_another(tmp_path):
    machine = make_machine().model_copy(update={"topology": "left-elsewhere"})
    run = make_run(tmp_path / "run", make_fit([entry({}, [40, 55, 120])]), machine=machine)
    found = api.predict(3, run=run, topology="h200-x8", batch=2)
    assert any("left-elsewhere" in text for text in found.what_if)
    assert [(r.batch_size, r.draft_tokens) for r in found.rows] == [(2, 1), (2, 3)]


@pytest.mark.parametrize("options", [{"ranks": 0}, {"ranks": -1}, {"context": -5}, {"context": 1.5}, {"batch": [4.5]}])
def test_counts_that_are_none_are_refused(options):
    with pytest.raises(InputError):
        api.predict([3], **options)


def test_a_fit_whose_best_is_none_of_its_settings(tmp_path):
    run = make_run(tmp_path / "run", make_fit([entry({}, [40, 55, 120])], best="gone"))
    with pytest.raises(InputError, match="gone"):
        api.predict([3], run=run)


def test_a_profile_of_another_run_says_so(tmp_path):
    machine = make_machine().model_copy(update={"topology": "rtx-pro-6000-x8"})
    first, second = (
        make_run(tmp_path / name, make_fit([entry({}, [40, 55, 120])], run_id=name), machine=machine)
        for name in ("first", "second")
    )
    profile = calibrate(Request("kimi-k2.5", (DECODE,), run=first))
    assert not any("without this run" in w for w in predict(Question(run=first, profile=profile), [1]).warnings)
    assert any("without this run" in w for w in predict(Question(run=second, profile=profile), [1]).warnings)


def test_a_drafter_of_another_width_is_refused_when_it_is_calibrated():
    with pytest.raises(InputError, match="does not fit"):
        calibrate(Request("qwen3-30b-a3b", (DECODE,), topology="h200-x2", drafter="kimi-k2.5-eagle3"))


def test_another_context_is_outside_the_points():
    profile = calibrated(DECODE)
    by_context = {
        c: predict(Question(profile=profile, context=c), [1]).rows[0].cycle_ms.source for c in (1024, 1200, 4096)
    }
    assert by_context == {1024: "measured", 1200: "interpolated", 4096: "extrapolated"}
