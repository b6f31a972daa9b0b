"""Scoring points of known origin: a run with known curves, and times that the model itself made."""

import pytest
from emit_runs import entry, make_fit, make_machine, make_run

from nccltune import api, store
from nccltune.calibration import Request, calibrate
from nccltune.costmodel.profile import save_profile
from nccltune.errors import InputError, QualityError, ValidationError
from nccltune.knobs import NAMED
from nccltune.schemas.points import Point
from nccltune.schemas.setting import BASE, Setting, parse_setting
from nccltune.validation.points import gate

LL = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}
SIMPLE = {"NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring"}
OTHER = parse_setting("NCCL_PROTO=LL;NCCL_ALGO=Tree")


@pytest.fixture
def run(tmp_path):
    """Base 40/55/120 us, LL Ring 25/28/70, Simple Ring 50/70/150 at 14,336, 43,008 and 229,376 B; LL128 is unusable."""
    settings = [entry({}, [40, 55, 120]), entry(LL, [25, 28, 70]), entry(SIMPLE, [50, 70, 150]),
                entry({"NCCL_PROTO": "LL128"}, [1, 1, 1], usable=False, reason="wrong results")]  # fmt: skip
    machine = make_machine().model_copy(update={"topology": "rtx-pro-6000-x8"})
    return make_run(tmp_path / "run", make_fit(settings, best="LL Ring"), machine=machine)


def point(phase, time_ms, width=1, batch=1, setting=BASE, use="", **more):
    return Point(phase=phase, batch_size=batch, draft_tokens=width, context_tokens=1024, time_ms=time_ms, setting=setting, use=use, **more)  # fmt: skip


CALIBRATE = [point("decode", 15.9, use="calibrate"), point("cycle", 27.0, 3, use="calibrate", accept_length=1.9)]


def validate(points, run, **options):
    return api.validate_points(points, model="kimi-k2.5", run=run, **options)


def by_label(found):
    return {(a.phase, a.setting.name, a.batch_size, a.draft_tokens): a for a in found.arms}


def test_arms_are_priced_under_their_own_setting_by_their_phase(run):
    points = [*CALIBRATE, *(point(*p, setting=Setting.make(e)) for e in (LL, SIMPLE) for p in (("decode", 15.0), ("verify", 25.0, 3), ("cycle", 27.0, 3), ("draft", 1.0, 3)))]  # fmt: skip
    arms = by_label(validate(points, run))
    # 123 all-reduces of 14,336 B, 25 against 50 us: 3.08 ms, and the gather of logits, half an all-reduce far beyond the sizes
    gap = arms["decode", "Simple Ring", 1, 1].predicted.value - arms["decode", "LL Ring", 1, 1].predicted.value
    assert 3.08 < gap < 3.08 * 1.15
    # 123 x (70 - 28) us = 5.17 ms at 43,008 B
    gap = arms["verify", "Simple Ring", 1, 3].predicted.value - arms["verify", "LL Ring", 1, 3].predicted.value
    assert 5.17 < gap < 5.17 * 1.15
    for name in ("LL Ring", "Simple Ring"):
        whole, verify, draft = (arms[phase, name, 1, 3].predicted.value for phase in ("cycle", "verify", "draft"))
        assert verify + draft < whole < 1.35 * (verify + draft)
        assert 0 < draft < verify


def test_rows_used_for_calibration_are_fitted_and_never_scored(run):
    found = validate([*CALIBRATE, point("decode", 14.0, setting=Setting.make(LL))], run)
    arms = by_label(found)
    assert arms["decode", "base", 1, 1].used_for_calibration
    assert arms["decode", "base", 1, 1].predicted.value == pytest.approx(15.9, rel=0.02)
    assert not arms["decode", "LL Ring", 1, 1].used_for_calibration
    assert (found.summary.num_scored, found.summary.num_used_for_calibration) == (1, 2)
    # a scored repetition of a calibrated arm stays out of the score
    again = validate([*CALIBRATE, point("decode", 30.0), point("decode", 14.0, setting=Setting.make(LL))], run)
    assert again.summary.num_scored == 1
    assert by_label(again)["decode", "base", 1, 1].used_for_calibration


def test_calibration_does_not_see_the_scored_rows(run):
    one = validate([*CALIBRATE, point("cycle", 20.0, 4)], run)
    other = validate([*CALIBRATE, point("cycle", 90.0, 4)], run)
    assert by_label(one)["cycle", "base", 1, 4].predicted == by_label(other)["cycle", "base", 1, 4].predicted


def test_a_setting_that_nobody_knows_is_listed_with_the_reason(run):
    found = validate([*CALIBRATE, point("decode", 14.0, setting=OTHER), point("decode", 14.0, setting=Setting.make(LL))], run)  # fmt: skip
    (missing,) = found.not_predictable
    assert missing.setting.env == OTHER.env
    assert "no curve" in missing.reason
    assert found.summary.num_not_predictable == 1
    assert all(a.setting.env != OTHER.env for a in found.arms)


def test_a_setting_without_a_curve_is_inferred_from_its_own_calibration_row(run):
    points = [*CALIBRATE, point("decode", 14.0, setting=OTHER, use="calibrate"), point("cycle", 24.0, 3, setting=OTHER)]
    found = validate(points, run)
    assert found.not_predictable == []
    arm = by_label(found)["cycle", OTHER.name, 1, 3]
    # 1.9 ms less at decode is 15 us less an all-reduce; at three times the message it saves at least as much
    assert 20 < arm.predicted.value < 26
    assert not arm.used_for_calibration


def test_a_disqualified_setting_is_not_predicted(run):
    found = validate([*CALIBRATE, point("decode", 9.0, setting=Setting.make({"NCCL_PROTO": "LL128"})), point("decode", 14.0, setting=Setting.make(LL))], run)  # fmt: skip
    assert "wrong results" in found.not_predictable[0].reason


def test_nothing_scored_fails_the_quality_gate(run):
    with pytest.raises(QualityError, match="nothing could be scored"):
        gate(validate(CALIBRATE, run))
    with pytest.raises(QualityError, match="no curve"):
        gate(validate([point("decode", 14.0, setting=OTHER)], run))


def test_the_gate_opens_and_closes_at_the_tolerance(run):
    made = by_label(validate([*CALIBRATE, point("decode", 1.0, batch=4)], run))["decode", "base", 4, 1].predicted.value
    gate(validate([*CALIBRATE, point("decode", made * 1.03, batch=4)], run, tolerance=5))
    with pytest.raises(ValidationError, match="out of tolerance"):
        gate(validate([*CALIBRATE, point("decode", made * 1.03, batch=4)], run, tolerance=2))


def test_without_marked_rows_the_prediction_is_that_of_predict(run):
    found = validate([point("decode", 15.0), point("cycle", 27.0, 3)], run)
    row = api.predict([3], run=run, setting="base", context=1024).rows[1]
    assert by_label(found)["cycle", "base", 1, 3].predicted == row.cycle_ms


def test_points_of_the_profile_behind_the_predictions_are_not_scored(run, tmp_path):
    profile = calibrate(Request("kimi-k2.5", tuple(p.model_copy(update={"use": ""}) for p in CALIBRATE), run))
    path = tmp_path / "p.json"
    save_profile(profile, path)
    found = validate([point("decode", 15.9), point("decode", 14.0, setting=Setting.make(LL))], run, profile=str(path))
    arms = by_label(found)
    assert arms["decode", "base", 1, 1].used_for_calibration
    assert found.summary.num_scored == 1
    assert any("points of the profile" in text for text in found.warnings)


@pytest.mark.parametrize("with_run", [True, False])
def test_marked_rows_go_on_top_of_a_profile(run, tmp_path, with_run):
    path = tmp_path / "p.json"
    save_profile(calibrate(Request("kimi-k2.5", tuple(p.model_copy(update={"use": ""}) for p in CALIBRATE), run)), path)
    more = point("cycle", 31.0, 6, use="calibrate", accept_length=2.2)
    found = validate([more, point("cycle", 28.0, 4)], run if with_run else None, profile=str(path))
    arms = by_label(found)
    assert arms["cycle", "base", 1, 6].used_for_calibration
    assert arms["cycle", "base", 1, 6].predicted.value == pytest.approx(31.0, rel=0.03)
    # between the 27 ms at 3 draft tokens of the profile and the 31 ms at 6 of the file
    assert 27 < arms["cycle", "base", 1, 4].predicted.value < 31


def test_a_profile_of_another_case_lends_no_points(run, tmp_path):
    path = tmp_path / "p.json"
    other = Request("qwen3-30b-a3b", (Point(phase="decode", batch_size=1, time_ms=4.5),), topology="h200-x2")
    save_profile(calibrate(other), path)
    found = validate([*CALIBRATE, point("decode", 18.0, batch=4)], run, profile=str(path))
    assert any("its points do not count" in text for text in found.warnings)
    assert found.summary.num_scored == 1


def test_a_model_and_a_drafter_may_be_config_files(tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 4096, "num_hidden_layers": 48, "num_attention_heads": 32,'
        '"num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,'
        '"intermediate_size": 6144, "decoder_sparse_step": 1, "mlp_only_layers": [], "torch_dtype": "bfloat16", "tie_word_embeddings": false}'
    )
    (folder / "draft.json").write_text(
        '{"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 4096, "target_hidden_size": 4096, "num_hidden_layers": 1,'
        '"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936, "draft_vocab_size": 32000,'
        '"torch_dtype": "bfloat16"}'
    )
    points = [point("decode", 6.0, use="calibrate"), point("cycle", 9.0, 3)]
    found = api.validate_points(points, model=str(folder), drafter=str(folder / "draft.json"), topology="h200-x2")
    assert found.summary.num_scored == 1
    assert (found.model, found.drafter, found.ranks) == ("m", "draft-drafter", 2)


SEED = NAMED["seed"]
# the figures that the shipped profile of Kimi-K2.5 was calibrated on, all at 1024 tokens of context
PUBLISHED = [("decode", 1, 15.9, BASE), ("decode", 1, 11.26, SEED), ("verify", 3, 25.6, BASE), ("verify", 3, 18.67, SEED), ("cycle", 3, 19.85, SEED)]  # fmt: skip


def published(**more):
    return [Point(phase=p, batch_size=1, draft_tokens=d, time_ms=ms, setting=s, **more) for p, d, ms, s in PUBLISHED]


@pytest.mark.parametrize("context", [None, 1024, 4096])
def test_the_points_of_the_shipped_profile_are_not_scored_whatever_their_context(context):
    points = [*published(context_tokens=context), Point(phase="verify", batch_size=1, draft_tokens=5, time_ms=22.0, setting=SEED)]  # fmt: skip
    found = api.validate_points(points, model="kimi-k2.5")
    assert [a.used_for_calibration for a in found.arms] == [True] * 5 + [False]
    assert [a.context_tokens for a in found.arms] == [context or 1024] * 5 + [1024]


def test_another_time_at_another_context_is_a_measurement_of_its_own():
    found = api.validate_points([Point(phase="decode", batch_size=1, context_tokens=4096, time_ms=12.0, setting=SEED)], model="kimi-k2.5")  # fmt: skip
    assert found.summary.num_scored == 1


def test_marked_rows_go_on_top_of_the_shipped_profile_and_say_so():
    marked = Point(phase="verify", batch_size=1, draft_tokens=6, time_ms=24.0, setting=SEED, use="calibrate")
    found = api.validate_points([marked, *published()], model="kimi-k2.5")
    assert (found.topology, found.summary.num_scored, found.summary.num_used_for_calibration) == ("rtx-pro-6000-x8", 0, 6)  # fmt: skip
    assert any("5 points of the shipped profile" in text for text in found.warnings)


def test_the_shipped_profile_stays_out_of_a_fit_with_the_users_own_run(run):
    found = validate([p.model_copy(update={"engine": "sglang-0.5.14"}) for p in CALIBRATE] + [point("decode", 18.0, batch=4)], run)  # fmt: skip
    assert not any("shipped" in text for text in found.warnings)
    assert found.summary.num_used_for_calibration == 2


def test_unmarked_rows_of_a_calibrated_arm_are_named(run):
    found = validate([*CALIBRATE, point("decode", 16.1), point("decode", 18.0, batch=4)], run)
    assert any("its unmarked rows neither: decode:1:1 base" in text for text in found.warnings)


def test_best_is_the_best_of_the_run(run, tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("phase,batch_size,context_tokens,time_ms,setting\ndecode,1,1024,14,best\n")
    (arm,) = api.validate_points(path, model="kimi-k2.5", run=run).arms
    assert arm.setting.name == "LL Ring"


def test_a_machine_must_be_known():
    with pytest.raises(InputError, match="machine is not known"):
        api.validate_points(CALIBRATE, model="qwen3-30b-a3b")


def test_too_many_calibration_rows_are_refused():
    rows = [point("decode", 15.9, use="calibrate")] * 1001
    with pytest.raises(InputError, match="1001 rows are marked calibrate"):
        api.validate_points(rows, model="kimi-k2.5", topology="rtx-pro-6000-x8")


def stored(run, tmp_path):
    found = validate(
        [*CALIBRATE, point("decode", 14.0, setting=Setting.make(LL)), point("decode", 13.0, setting=OTHER)], run
    )
    path = tmp_path / "validation.json"
    store.write_json(path, {"schema": "nccltune.validation", **found.model_dump(mode="json")})
    return path, found


def test_a_stored_validation_is_scored_again_as_it_was(run, tmp_path):
    path, found = stored(run, tmp_path)
    again = api.validate("points", path, model="kimi-k2.5", run=run)
    assert again.summary == found.summary
    assert [a.used_for_calibration for a in again.arms] == [True, True, False]
    assert [m.setting.env for m in again.not_predictable] == [OTHER.env]


def test_a_stored_validation_feeds_calibrate_with_every_arm(run, tmp_path):
    path, _ = stored(run, tmp_path)
    profile = api.calibrate("kimi-k2.5", path, run=run)
    assert sorted(p.point.time_ms for p in profile.points) == [13.0, 14.0, 15.9, 27.0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"schema": "nccltune.validation", "schema_v', "is not JSON"),
        ('{"schema": "nccltune.fit", "schema_version": 1}', "not a nccltune.validation file"),
        ('{"schema": "nccltune.validation", "schema_version": 2}', "update nccltune"),
        ('{"schema": "nccltune.validation", "schema_version": 1}', "not a valid validation"),
    ],
)
def test_a_broken_validation_is_refused(tmp_path, run, text, says):
    path = tmp_path / "v.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        api.validate_points(path, model="kimi-k2.5", run=run)
    assert says in str(caught.value)


def test_a_base_that_failed_in_the_run_does_not_stop_the_others(tmp_path):
    settings = [entry({}, [1, 1, 1], usable=False, reason="no such device"), entry(LL, [25, 28, 70])]
    machine = make_machine().model_copy(update={"topology": "rtx-pro-6000-x8"})
    run = make_run(tmp_path / "r", make_fit(settings, best="LL Ring"), machine=machine)
    found = validate([point("decode", 14.0, setting=Setting.make(LL)), point("decode", 15.9)], run)
    assert [a.setting.name for a in found.arms] == ["LL Ring"]
    assert "no such device" in found.not_predictable[0].reason
