"""Rules for our plugin: only where something measured beats NCCL's own choice, and nothing said about the rest."""

import pytest
from emit_runs import DECODE, PREFILL, SET, choice, curve, entry, make_fit, tuned_fit

from nccltune.emit.document import Rule
from nccltune.emit.tuner_rules import inexpressible, plugin_plan
from nccltune.errors import NoBasisError, QualityError
from nccltune.tuner.policy import MAX_BYTES

BASE_CHOICES = {s: choice("Tree", "LL", n) for s, n in zip(DECODE, (1, 3, 8), strict=True)} | {
    PREFILL: choice("Ring", "Simple", 24)
}
LL_CHOICES = {s: choice("Ring", "LL", n) for s, n in zip(DECODE, (1, 3, 14), strict=True)} | {
    PREFILL: choice("Ring", "LL", 24)
}


def plan_of(settings, env=None, ll128=False, **changes):
    return plugin_plan(make_fit(settings, **changes), env or {}, ll128_by_default=ll128)


def test_the_fastest_where_it_is_faster_and_nccl_elsewhere():
    plan = plan_of([
        entry({}, (20, 20, 40, 100), choices=BASE_CHOICES),
        entry({"NCCL_PROTO": "LL"}, (10, 19.9, 30, 900), choices=LL_CHOICES | {DECODE[1]: choice("Ring", "LL", 5)}),
    ])  # fmt: skip
    # 43008 B is within noise, 8 MiB is slower: NCCL's own. sqrt(14336 x 43008) = 24830.7 and sqrt(43008 x 229376) = 99322.9,
    # but next to NCCL's own a rule reaches a factor of 2 at most: 2 x 14336 = 28672 is wider, 229376 / 2 = 114688 is narrower,
    # 2 x 229376 = 458752.
    assert plan.rules == [
        Rule("AllReduce", 14336, 24830, "Ring", "LL", 0, 8, 1),
        Rule("AllReduce", 114688, 458752, "Ring", "LL", 0, 8, 1),
    ]
    assert plan.env == {}
    assert plan.notes == []
    assert (
        plan.evidence[0]
        == "14336 B: Ring LL, 1 channel, 10.00 us (measured as 'LL'), 50.0% faster [48.9, 51.1] than NCCL's own choice"
    )
    assert (
        plan.evidence[1]
        == "43008 B: Tree LL, 3 channels, 20.00 us: NCCL's own choice, nothing measured is faster beyond noise"
    )


def test_neighbours_with_one_choice_are_one_rule():
    plan = plan_of([
        entry({}, (20, 20, 40, 100), choices=BASE_CHOICES),
        entry({"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}, (10, 10, 20, 100), choices=LL_CHOICES),
    ])  # fmt: skip
    assert plan.rules == [Rule("AllReduce", 14336, 458752, "Ring", "LL", 0, 8, 1)]


def test_a_count_that_was_set_is_written_as_it_was_used():
    two = {s: choice("Ring", "LL", n) for s, n in zip(DECODE, (1, 2, 2), strict=True)}
    plan = plan_of([
        entry({}, (20, 20, 40), choices=BASE_CHOICES),
        entry({"NCCL_PROTO": "LL", "NCCL_MAX_NCHANNELS": "2"}, (10, 10, 20), choices=two),
    ])  # fmt: skip
    # the largest measured size is the end: nothing is known above it
    assert plan.rules == [
        Rule("AllReduce", 14336, 24830, "Ring", "LL", 1, 8, 1),
        Rule("AllReduce", 24831, 229376, "Ring", "LL", 2, 8, 1),
    ]


def test_more_channels_than_nccl_has_come_with_the_variable_and_with_nccls_choices_pinned():
    few = {s: choice("Ring", "LL", 2) for s in DECODE} | {PREFILL: choice("Ring", "Simple", 4)}
    many = {s: choice("Ring", "LL", n) for s, n in zip(DECODE, (1, 3, 14), strict=True)} | {
        PREFILL: choice("Ring", "Simple", 16)
    }
    both = {"NCCL_MIN_NCHANNELS": "16", "NCCL_MAX_NCHANNELS": "16"}
    plan = plan_of([entry({}, (20, 20, 40, 100), choices=few), entry(both, (20, 15, 30, 130), choices=many)])
    assert plan.env == {"NCCL_MIN_NCHANNELS": "14"}
    assert "NCCL was seen with 4" in plan.notes[0]
    # every size has a rule; sqrt(229376 x 8388608) = 1387135.8
    assert plan.rules == [
        Rule("AllReduce", 0, 24830, "Ring", "LL", 2, 8, 1),
        Rule("AllReduce", 24831, 99322, "Ring", "LL", 3, 8, 1),
        Rule("AllReduce", 99323, 1387135, "Ring", "LL", 14, 8, 1),
        Rule("AllReduce", 1387136, MAX_BYTES, "Ring", "Simple", 4, 8, 1),
    ]


def test_what_a_rule_cannot_stand_for_does_not_count():
    base = entry({}, (20, 20, 40), choices=BASE_CHOICES)
    threads = entry({"NCCL_PROTO": "LL", "NCCL_NTHREADS": "64"}, (10, 10, 20), choices=LL_CHOICES)
    with pytest.raises(QualityError, match="nothing to tell"):
        plan_of([base, threads])
    # with the variable in the environment it does; NCCL's own choice under it was not measured
    plan = plan_of([base, threads], env={"NCCL_NTHREADS": "64"})
    assert {rule.proto for rule in plan.rules} == {"LL"}
    assert plan.env["NCCL_NTHREADS"] == "64"
    assert "NCCL's own choice was not measured" in plan.evidence[0]
    # a buffer of the Simple protocol cannot act on LL
    assert inexpressible(SET) == {"NCCL_BUFFSIZE": "16777216"}
    assert plugin_plan(tuned_fit(), {}, ll128_by_default=False).rules == [
        Rule("AllReduce", 14336, 458752, "Ring", "LL", 0, 8, 1)
    ]


def test_ll128_counts_only_where_nccl_enables_it_by_itself():
    settings = [
        entry({}, (20, 20, 40), choices=BASE_CHOICES),
        entry({"NCCL_PROTO": "LL128"}, (5, 5, 5), choices={s: choice("Ring", "LL128", 2) for s in DECODE}),
    ]
    with pytest.raises(QualityError):
        plan_of(settings)
    assert {rule.proto for rule in plan_of(settings, ll128=True).rules} == {"LL128"}


def test_the_same_choice_is_no_rule_however_fast_it_looked():
    settings = [
        entry({}, (20, 20, 40), choices=LL_CHOICES),
        entry({"NCCL_ALGO": "Ring"}, (10, 10, 20), choices=LL_CHOICES),
    ]
    with pytest.raises(QualityError):
        plan_of(settings)


def test_failed_other_timings_and_unmeasured_points_do_not_count():
    base = entry({}, (20, 20, 40), choices=BASE_CHOICES)
    failed = entry({"NCCL_PROTO": "LL"}, (1, 1, 1), usable=False, reason="wrong results")
    eager = entry({"NCCL_ALGO": "Ring"}, (1, 1, 1), choices=LL_CHOICES).model_copy(update={"timing": "eager"})
    guessed = entry({"NCCL_ALGO": "Ring,Tree"}, (1, 1, 1)).model_copy(
        update={"points": [p.model_copy(update={"source": "extrapolated"}) for p in curve((1, 1, 1), LL_CHOICES)]}
    )
    with pytest.raises(QualityError):
        plan_of([base, failed, eager, guessed])


def test_without_known_choices_there_is_no_basis():
    with pytest.raises(NoBasisError, match="no tuner rules"):
        plan_of([entry({}, (20, 20, 40)), entry({"NCCL_PROTO": "LL"}, (10, 10, 20))])
