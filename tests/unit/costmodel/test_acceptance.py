"""Acceptance: conversions and bounds, with numbers worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccltune.costmodel.acceptance import extended, from_mean, from_rates, isotonic, length_from_rate
from nccltune.costmodel.acceptance_input import parse_rates, resolve_acceptance
from nccltune.errors import InputError


def test_mean_of_two_drafts_gives_the_survival_worked_out_by_hand():
    # p + p^2 = 0.866: p = (-1 + sqrt(1 + 4 x 0.866)) / 2 = 0.5564, p^2 = 0.3096
    found = from_mean(1.866, 2, "test")
    assert found.survival == pytest.approx([0.5564, 0.3096], abs=2e-4)
    length = found.accept_length([0, 1, 2])
    assert length.value == pytest.approx([1.0, 1.5564, 1.866], abs=2e-4)
    assert length.low[0] == length.high[0] == 1.0
    assert length.low[1] < 1.5564 < length.high[1]  # the shape is assumed, so one draft is less certain
    assert length.low[2] == pytest.approx(length.high[2], abs=1e-6)  # the mean itself was given without a spread


def test_lengths_beyond_measured_positions_are_marked_and_widen():
    found = extended(from_rates([0.6, 0.4], "test", "survival"), 4)
    length = found.accept_length([2, 3, 4])
    # geometric mean sqrt(0.4) = 0.6325 goes on: 2.0, + 0.4 x 0.6325 = 0.253, + 0.16
    assert length.value == pytest.approx([2.0, 2.253, 2.413], abs=1e-3)
    widths = length.high - length.low
    assert widths[0] < widths[1] < widths[2]
    assert [int(s) for s in length.source] == [0, 2, 2]  # measured, extrapolated, extrapolated


def test_conditional_and_survival_lists_differ_as_published():
    # Card of a K2.6 head: 0.633 0.404 0.264 printed as conditional with accept length 2.30: they are survival.
    survival = from_rates([0.633, 0.404, 0.264], "card", "survival").accept_length(3)
    conditional = from_rates([0.633, 0.404, 0.264], "card", "conditional").accept_length(3)
    assert float(survival.value) == pytest.approx(2.301)
    assert float(conditional.value) == pytest.approx(1 + 0.633 + 0.633 * 0.404 + 0.633 * 0.404 * 0.264)


def test_auto_reads_survival_and_says_what_the_other_reading_would_give():
    found = from_rates([0.77, 0.45, 0.24], "test")
    assert float(found.accept_length(3).value) == pytest.approx(2.46)
    assert "conditional" in found.warnings[0]


def test_rising_rates_are_refused_until_the_kind_is_said():
    with pytest.raises(InputError, match="rise"):
        from_rates([0.6, 0.7], "test")
    assert float(from_rates([0.6, 0.7], "test", "conditional").accept_length(2).value) == pytest.approx(1.6 + 0.42)


@pytest.mark.parametrize(("mean", "drafts"), [(0.5, 2), (3.4, 2), (float("nan"), 2), (1.5, 0), (float("inf"), 3)])
def test_impossible_means_are_refused(mean, drafts):
    with pytest.raises(InputError):
        from_mean(mean, drafts, "test")


@pytest.mark.parametrize("rates", [[], [1.2], [-0.1], [float("nan")], [0.5, 2]])
def test_impossible_rates_are_refused(rates):
    with pytest.raises(InputError):
        from_rates(rates, "test")


def test_full_and_no_acceptance():
    assert float(from_mean(3.0, 2, "all accepted").accept_length(2).value) == pytest.approx(3.0)
    none = from_mean(1.0, 2, "none accepted")
    assert np.all(none.accept_length([1, 2, 5]).value == pytest.approx(1.0, abs=1e-9))


def test_rates_of_both_definitions_give_lengths():
    assert length_from_rate(0.5178, 4, bonus_included=False) == pytest.approx(3.07, abs=0.005)
    assert length_from_rate(0.577, 2, bonus_included=True) == pytest.approx(1.731)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_isotonic_never_rises_and_keeps_the_mean(values):
    found = isotonic(np.array(values))
    assert np.all(np.diff(found) <= 1e-12)
    assert found.mean() == pytest.approx(np.mean(values))


def test_only_one_source_of_acceptance_is_taken():
    with pytest.raises(InputError, match="contradict"):
        resolve_acceptance(accept_length=2.0, accept_rates=[0.5], draft_tokens=[3])
    assert resolve_acceptance(draft_tokens=[3]) is None


def test_a_length_needs_a_number_of_drafts():
    with pytest.raises(InputError, match="not known"):
        resolve_acceptance(accept_length=2.0, draft_tokens=[1])
    found = resolve_acceptance(accept_length=3.2, accept_steps=3, draft_tokens=[1, 2])
    assert found is not None
    assert len(found.survival) == 3


def test_rates_are_read_as_fractions_or_percent():
    assert parse_rates("0.6, 45%") == pytest.approx([0.6, 0.45])
    with pytest.raises(InputError):
        parse_rates("0.6,x")


def test_a_mean_over_an_unknown_number_of_drafts_is_not_measured_and_says_so():
    found = resolve_acceptance(accept_length=1.9, draft_tokens=[2, 3, 4])
    assert any("--accept-steps" in w for w in found.warnings)
    assert [found.accept_length(k).item().source for k in (0, 1, 3)] == ["measured", "assumed", "assumed"]
    known = resolve_acceptance(accept_length=1.9, accept_steps=3, draft_tokens=[2, 3, 4])
    assert (known.accept_length(3).item().source, known.warnings) == ("measured", [])
    only = resolve_acceptance(accept_length=1.9, draft_tokens=[1, 3])
    assert (only.accept_length(2).item().source, only.warnings) == ("measured", [])


@pytest.mark.parametrize(
    "options",
    [
        {"accept_steps": 2}, {"accept_kind": "survival"}, {"accept_rates": [0.6, 0.5], "accept_steps": 4},
        {"accept_length": 1.9, "accept_kind": "conditional"},
    ],
)  # fmt: skip
def test_options_that_belong_to_another_one_are_not_ignored(options):
    with pytest.raises(InputError):
        resolve_acceptance(draft_tokens=[3], **options)
