"""The shipped reference against every published figure of the machine that started the project."""

import pytest

from nccltune import api
from nccltune.costmodel.basis import Question
from nccltune.costmodel.prediction import predict_grid


@pytest.fixture(scope="module")
def answer():
    return api.predict([3], explain=True)


def row(answer, draft_tokens):
    return next(r for r in answer.rows if r.draft_tokens == draft_tokens)


@pytest.mark.parametrize(
    ("setting", "draft_tokens", "column", "published"),
    [
        ("best", 1, "cycle_ms", 11.26),
        ("best", 3, "verify_ms", 18.67),
        ("best", 3, "cycle_ms", 19.85),
        ("best", 3, "tokens_per_s", 94.0),
        ("best", 1, "tokens_per_s", 88.8),
        ("best", 3, "speedup", 94.0 / 88.8),
        ("base", 1, "cycle_ms", 15.90),
        ("base", 1, "tokens_per_s", 62.9),
        ("base", 3, "verify_ms", 25.6),
    ],
)
def test_published_rows_within_two_percent_and_inside_the_interval(setting, draft_tokens, column, published):
    value = getattr(row(api.predict([3], setting=setting), draft_tokens), column)
    assert value.value == pytest.approx(published, rel=0.02)
    assert value.low <= published <= value.high
    assert value.source == "measured"


def test_the_measured_gain_per_all_reduce(answer):
    # 38 us at 14,336 B and 56 us at 43,008 B over 123 all-reduces
    base, tuned = api.predict([3], setting="base"), answer
    for draft_tokens, published_us in ((1, 38), (3, 56)):
        gain = row(base, draft_tokens).verify_ms.value - row(tuned, draft_tokens).verify_ms.value
        assert 1e3 * gain / 123 == pytest.approx(published_us, rel=0.03)


def test_message_counts_and_bytes(answer):
    found = row(answer, 3)
    assert (found.allreduce_bytes, found.allreduces_per_forward, found.num_steps) == (43008, 123, 2)


def test_the_verify_overhead_is_named_first(answer):
    overhead = row(answer, 3).overhead_ms
    assert overhead.value == pytest.approx(5.0, abs=1.0)
    assert overhead.low < 5.0 < overhead.high
    assert answer.findings[0].startswith("verify overhead")
    assert "CUDA graph" in answer.findings[0]


def test_the_answer_says_where_it_comes_from(answer):
    assert "shipped reference profile" in answer.warnings[0]
    assert answer.setting.name == "seed"
    assert answer.default_setting_baseline.decode_ms.value == pytest.approx(15.9, rel=0.02)
    assert answer.acceptance.survival == pytest.approx([0.556, 0.310], abs=2e-3)


def test_parts_of_every_row_add_up(answer):
    for r in api.predict(range(1, 9)).rows:
        parts = r.comm_ms.value + r.compute_ms.value + r.overhead_ms.value
        assert parts == pytest.approx(r.verify_ms.value)
        assert parts + r.draft_ms.value + r.host_ms.value == pytest.approx(r.cycle_ms.value)


def test_explained_terms_add_up_to_the_row(answer):
    terms = [t.value_ms for t in answer.explain if t.group != "correction"]
    assert sum(terms) == pytest.approx(answer.explained_row.cycle_ms.value)


def test_other_counts_are_extrapolated_and_wider():
    found = {r.draft_tokens: r for r in api.predict(range(1, 9)).rows}
    width = {d: r.verify_ms.high / r.verify_ms.low for d, r in found.items()}
    assert width[3] < width[4] < width[6] < width[8]
    assert width[3] < width[2]
    assert found[5].verify_ms.source == found[5].accept_length.source == "extrapolated"


def test_a_grid_agrees_with_the_rows():
    grid = predict_grid(Question(), ["base", "seed"], [1, 4], [1, 3, 5])
    found = api.predict([1, 3, 5], batch=[1, 4], setting="seed")
    assert grid["cycle_ms"].shape == (2, 2, 3)
    assert grid["cycle_ms"][1].ravel() == pytest.approx([r.cycle_ms.value for r in found.rows])
    assert grid["verify_ms_high"][1].ravel() == pytest.approx([r.verify_ms.high for r in found.rows])
