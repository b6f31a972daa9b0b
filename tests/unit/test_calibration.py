"""Calibration on times that the model itself made, so that the right answer is known."""

import json

import numpy as np
import pytest
from flat_curve import flat

from nccltune import api, registry
from nccltune.calibration import Request, calibrate
from nccltune.costmodel import profile as profiles
from nccltune.costmodel.basis import Question
from nccltune.costmodel.fitting import calibrate_points
from nccltune.costmodel.forward import price
from nccltune.costmodel.posterior import Posterior
from nccltune.costmodel.prediction import predict
from nccltune.costmodel.priors import all_priors
from nccltune.costmodel.system import Rows, System
from nccltune.errors import InputError
from nccltune.reference import POINTS, reference_profile, write_reference
from nccltune.schemas.points import Point
from nccltune.schemas.setting import Setting

FAST, SLOW = Setting.make({"NCCL_PROTO": "LL"}, "fast"), Setting.make({"NCCL_PROTO": "Simple"}, "slow")


def system(curves):
    model = registry.load_model("kimi-k2.5")
    return System(model, registry.load_drafter("kimi-k2.5-eagle3"), 8, 1.792e12, curves, next(iter(curves)), "measured")


def truth(s, changes, rows):
    """Cycle and verify times with parameters other than the priors'."""
    posterior = Posterior.from_priors(all_priors(s.model, s.basis, []))
    theta = posterior.theta.copy()
    for name, value in changes.items():
        theta[posterior.names.index(name)] = np.log(value)
    return price(s, rows, Posterior(posterior.priors, theta, posterior.covariance), {})


def test_few_points_recover_overhead_and_left_out_times():
    s = system({"fast": flat(25.0), "slow": flat(60.0)})
    rows = Rows.make(1, [1, 3, 1, 3], 1024, ["fast", "fast", "slow", "slow"])
    made = truth(s, {"overhead_ms": 5.0, "kernel_us": 2.8}, rows).verify.value
    points = [
        Point(phase="decode", batch_size=1, time_ms=made[0], setting=FAST),
        Point(phase="verify", batch_size=1, draft_tokens=3, time_ms=made[1], setting=FAST),
    ]
    found = calibrate_points(s, points, 1024)
    priced = price(s, rows, found.posterior, found.setting_ids)
    estimate = priced.estimate(priced.verify, np.zeros(4, np.int8), noise=True)
    assert estimate.value[:2] == pytest.approx(made[:2], rel=0.01)
    # a setting that only the run measured, never the engine: within 3%, and inside the interval
    assert estimate.value[2:] == pytest.approx(made[2:], rel=0.03)
    assert np.all((estimate.low <= made) & (made <= estimate.high))
    # 5 ms at 2 draft tokens, growing with exponent 0.15: 5 x 2^0.15 = 5.55 ms at 3
    assert priced.groups["overhead"].value[1] == pytest.approx(5.55, rel=0.15)


def test_points_narrow_the_interval_and_distance_widens_it():
    s = system({"base": flat(25.0)})
    rows = Rows.make([1, 4, 64], 1, 1024, ["base"] * 3)
    before = Posterior.from_priors(all_priors(s.model, s.basis, []))
    wide = price(s, rows, before, {})
    made = truth(s, {"kernel_us": 3.0}, rows).verify.value
    found = calibrate_points(s, [Point(phase="decode", batch_size=1, time_ms=made[0])], 1024)
    tight = price(s, rows, found.posterior, found.setting_ids)
    zeros = np.zeros(3, np.int8)
    a, b = wide.estimate(wide.verify, zeros, noise=True), tight.estimate(tight.verify, zeros, noise=True)
    spread_before, spread = a.high / a.low, b.high / b.low
    assert np.all(spread < spread_before)
    assert spread[0] < spread[1] < spread[2]


def test_a_setting_without_a_curve_is_inferred_from_both_settings_points():
    s = system({"fast": flat(25.0)})
    both = system({"fast": flat(25.0), "slow": flat(60.0)})
    rows = Rows.make(1, [1, 3, 1, 3], 1024, ["fast", "fast", "slow", "slow"])
    made = truth(both, {}, rows).verify.value
    phases = [("decode", 1), ("verify", 3)] * 2
    points = [
        Point(phase=p, batch_size=1, draft_tokens=d, time_ms=t, setting=setting)
        for (p, d), t, setting in zip(phases, made, (FAST, FAST, SLOW, SLOW), strict=True)
    ]
    found = calibrate_points(s, points, 1024)
    ratio = np.exp(found.posterior.parameters["setting:slow"])
    assert ratio == pytest.approx(60 / 25, rel=0.05)


def test_no_points_is_an_error():
    with pytest.raises(InputError, match="no points"):
        calibrate_points(system({"base": flat(25.0)}), [], 1024)


def test_engines_are_not_mixed_unsaid():
    points = tuple(Point(phase="decode", batch_size=b, time_ms=5.0 + b, engine=e) for b, e in ((1, "SGLang 0.5.14"), (4, "vLLM 0.18")))  # fmt: skip
    request = Request("qwen3-30b-a3b", points, topology="h200-x2")
    with pytest.raises(InputError, match="2 engines"):
        calibrate(request)
    mixed = calibrate(Request("qwen3-30b-a3b", points, topology="h200-x2", allow_mixed=True))
    assert any("mixed on request" in w for w in mixed.warnings)


def test_the_machine_must_be_known():
    with pytest.raises(InputError, match="machine is not known"):
        calibrate(Request("qwen3-30b-a3b", (Point(phase="decode", batch_size=1, time_ms=4.57),)))


def test_points_marked_score_are_left_out():
    points = (
        Point(phase="decode", batch_size=1, time_ms=4.57),
        Point(phase="decode", batch_size=4, time_ms=60.0, use="score"),
    )
    profile = calibrate(Request("qwen3-30b-a3b", points, topology="h200-x2"))
    assert [p.point.batch_size for p in profile.points] == [1]


def test_a_point_that_does_not_belong_is_named():
    points = tuple(Point(phase="decode", batch_size=b, time_ms=t) for b, t in ((1, 4.57), (4, 60.0), (16, 9.09)))
    profile = calibrate(Request("qwen3-30b-a3b", points, topology="h200-x2"))
    assert any("decode:4:1" in w and "off after the fit" in w for w in profile.warnings)


def test_a_profile_survives_its_file(tmp_path):
    profile = calibrate(
        Request("qwen3-30b-a3b", (Point(phase="decode", batch_size=1, time_ms=4.57),), topology="h200-x2")
    )
    profiles.save_profile(profile, tmp_path / "p.json")
    loaded = profiles.load_profile(str(tmp_path / "p.json"))
    assert loaded == profile
    a, b = profiles.posterior_of(profile), profiles.posterior_of(loaded)
    assert np.array_equal(a.theta, b.theta)
    assert np.array_equal(a.covariance, b.covariance)


def test_a_damaged_profile_is_refused(tmp_path):
    text = (profiles.SHIPPED_FOLDER / f"{profiles.REFERENCE}.json").read_text()
    path = tmp_path / "p.json"
    path.write_text(text[: len(text) // 2])
    with pytest.raises(InputError, match="not JSON"):
        profiles.load_profile(str(path))
    path.write_text(text.replace('"reference_setting": "seed"', '"reference_setting": "other"'))
    with pytest.raises(InputError, match="no curve of its reference"):
        profiles.load_profile(str(path))


def _set(path, value):
    """Change one field, named by its keys."""

    def change(document):
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value

    return change


def _twice(document):
    document["curves"][0]["points"].append(document["curves"][0]["points"][0])


@pytest.mark.parametrize(
    "change",
    [
        _set(["best_setting"], "nosuch"), _set(["parameters", 0, "value"], -1.0), _set(["parameters", 0, "value"], 0.0),
        _set(["parameters", 0, "name"], "other"), _set(["covariance", 0, 0], -5.0), _set(["points", 0, "model_ms"], 0.0),
        _set(["curves", 0, "points", 0, "time_us"], -1.0), _set(["curves", 0, "points"], []), _twice,
        _set(["discrepancy", "scale"], -1.0), _set(["acceptance", "low"], 0.5), _set(["acceptance", "mean"], 5.0),
        _set(["acceptance", "num_steps"], 0), _set(["context_tokens"], -1), _set(["schema_version"], 2),
        _set(["parameters"], []), _set(["covariance", 0], []),
    ],
)  # fmt: skip
def test_a_profile_edited_by_hand_is_refused_and_never_crashes(tmp_path, change):
    document = json.loads((profiles.SHIPPED_FOLDER / f"{profiles.REFERENCE}.json").read_text())
    change(document)
    path = tmp_path / "p.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError):
        api.predict([3], profile=str(path))


def test_json_nested_too_deep_is_an_input_error(tmp_path):
    path = tmp_path / "p.json"
    path.write_text("[" * 100_000)
    with pytest.raises(InputError, match="not JSON"):
        profiles.load_profile(str(path))


def test_a_profile_predicts_at_the_context_of_its_points():
    points = tuple(Point(phase="decode", batch_size=b, time_ms=11.0 + b, context_tokens=1024) for b in (1, 2))
    profile = calibrate(Request("kimi-k2.5", points, topology="rtx-pro-6000-x8"))
    assert profile.context_tokens == 1024
    found = predict(Question(profile=profile), [1])
    assert found.context_tokens == 1024
    assert found.rows[0].cycle_ms.source == "measured"
    assert found.rows[0].cycle_ms.value == pytest.approx(12.0, rel=0.02)


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ([("decode", 1, 11_260.0)], "in milliseconds"),  # microseconds
        ([("decode", 1, 0.01126)], "in milliseconds"),  # seconds
        ([("decode", 1, 11.26), ("verify", 3, 9.0)], "faster than decode"),
    ],
)
def test_points_that_cannot_be_right_are_named(points, says):
    made = tuple(Point(phase=p, batch_size=1, draft_tokens=d, time_ms=ms) for p, d, ms in points)
    profile = calibrate(Request("kimi-k2.5", made, topology="rtx-pro-6000-x8"))
    assert any(says in text for text in profile.warnings)


def test_the_shipped_profile_is_what_its_points_give(tmp_path):
    shipped = profiles.load_profile(profiles.REFERENCE)
    again = profiles.load_profile(str(write_reference(tmp_path)))
    assert again.points == shipped.points or [p.point for p in again.points] == [p.point for p in shipped.points]
    for a, b in zip(again.parameters, shipped.parameters, strict=True):
        assert (a.name, a.prior_value, a.prior_spread) == (b.name, b.prior_value, b.prior_spread)
        assert a.value == pytest.approx(b.value, rel=1e-5, abs=1e-7)
    assert np.array(again.covariance) == pytest.approx(np.array(shipped.covariance), rel=1e-4, abs=1e-8)
    assert [c.points for c in again.curves] == [c.points for c in shipped.curves]
    assert POINTS.is_file()
    assert reference_profile().acceptance == shipped.acceptance
