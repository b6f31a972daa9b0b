"""Confirming a winner: fresh launches in turn with the base, each variable taken away once, the other collectives run."""

import pytest
from fake_session import FakeSession, MemoryRun, fake_plan

from nccltune.bench.confirm import LAUNCHES, OTHER_COLLECTIVES, Confirm, ablations
from nccltune.bench.effective import Resolution
from nccltune.bench.group import RankFailure
from nccltune.bench.options import ScanOptions
from nccltune.bench.records import record, skipped
from nccltune.plan import Grid
from nccltune.schemas.measurement import Choice
from nccltune.schemas.setting import Setting
from nccltune.stats import summarize

SIZES = [14336, 57344]
BEST = Setting.make({"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_MIN_NCHANNELS": "16", "NCCL_MAX_NCHANNELS": "16"})


SCANNED = Choice(algo="Ring", proto="LL", num_channels=16, num_threads=512)


def scanned_cases(best=BEST, sizes=SIZES, choice=None, status="ok"):
    """What the scan holds of the base and the winner."""
    plan = fake_plan(Grid(named=(best,)), SIZES)
    cases = [plan.case(setting, size, "in-forward") for setting in plan.settings for size in sizes]
    if status == "skipped":
        return [skipped(case, "race: not the best", None) for case in cases]
    return [record(case, "ok", samples_us=[8.0], stats=summarize([8.0]).to_dict(), choice=choice) for case in cases]


def confirm(session, best=BEST, scanned=None, budget_s=None, **options):
    plan = fake_plan(Grid(named=(best, *ablations(best))), SIZES)
    run = MemoryRun()
    run.append(scanned_cases(best) if scanned is None else scanned)
    walk = Confirm(run, plan, session, ScanOptions(time_budget_s=budget_s), best=best, **options)
    return walk.walk(), walk, run.all_measurements()


def times(setting_id, size_bytes):
    return 8.0 if "NCHANNELS" in setting_id else 10.0


def test_ablations_take_each_decision_away_once():
    assert [s.name for s in ablations(BEST)] == ["LL Ring", "LL 16ch", "Ring 16ch"]
    assert ablations(Setting.make({"NCCL_PROTO": "LL"})) == []
    split = Setting.make({"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "16"})
    assert [s.name for s in ablations(split)] == ["min8ch", "max16ch"]


def test_base_and_winner_run_in_launches_of_their_own_in_turn():
    session = FakeSession(times)
    outcome, walk, measured = confirm(session)
    assert (outcome, walk.num_launches) == ("complete", LAUNCHES)
    opened = [setting_id for what, setting_id in session.calls if what == "open"]
    assert opened[:6] == ["base", BEST.id, BEST.id, "base", "base", BEST.id]
    repeats = [m for m in measured if m.repeat]
    assert len(repeats) == 2 * LAUNCHES * len(SIZES)
    assert len({m.case_id for m in repeats}) == len(repeats)
    assert {m.setting.id for m in measured if not m.repeat} == {"base", BEST.id, *(s.id for s in ablations(BEST))}


def test_other_collectives_run_once_under_the_winner():
    session = FakeSession(times, faults={"all_gather": "no algorithm", "reduce_scatter": "", "broadcast": ""})
    _, walk, _ = confirm(session)
    assert [c for c in session.calls if c[0] == "others"] == [("others", BEST.id)]
    assert walk.faults == {"all_gather": "no algorithm", "reduce_scatter": "", "broadcast": ""}


def test_a_failed_launch_is_a_record_and_the_walk_goes_on():
    failed = []

    def once(what, setting_id, size_bytes):
        if what == "measure" and setting_id == BEST.id and not failed:
            failed.append(1)
            raise RankFailure("hang", "rank 1 did not answer", 1, group_alive=False)

    outcome, walk, measured = confirm(FakeSession(times, on=once))
    assert (outcome, walk.num_launches) == ("complete", LAUNCHES - 1)
    assert walk.problem == "timeout at 14 KiB: rank 1 did not answer"
    lost = [m for m in measured if m.status == "timeout"]
    assert [(m.setting.id, m.size_bytes, m.repeat > 0) for m in lost] == [(BEST.id, SIZES[0], True)]
    again = [m for m in measured if m.setting.id == BEST.id and m.status == "ok" and m.repeat]
    assert len(again) == (LAUNCHES - 1) * len(SIZES)


def test_wrong_sums_in_a_confirmation_are_recorded():
    _, walk, measured = confirm(FakeSession(times, wrong={(BEST.id, SIZES[1])}))
    again = [m for m in measured if m.setting.id == BEST.id and m.size_bytes == SIZES[1] and m.repeat]
    assert {m.status for m in again} == {"wrong_results"}
    assert walk.num_launches == 0
    assert walk.problem.startswith("wrong_results at 56 KiB")


def test_launches_that_all_failed_are_not_counted():
    def always(what, setting_id, size_bytes):
        if what == "measure" and setting_id == BEST.id:
            raise RankFailure("hang", "rank 0 did not answer", 0, group_alive=False)

    outcome, walk, _ = confirm(FakeSession(times, on=always))
    assert (outcome, walk.num_launches) == ("complete", 0)
    assert "rank 0 did not answer" in walk.problem


def test_a_failed_base_costs_the_launch_but_is_not_the_winners_fault():
    def always(what, setting_id, size_bytes):
        if what == "measure" and setting_id == "base":
            raise RankFailure("hang", "rank 0 did not answer", 0, group_alive=False)

    _, walk, _ = confirm(FakeSession(times, on=always))
    assert (walk.num_launches, walk.problem) == (0, "")


@pytest.mark.parametrize("where", ["others", "close"])
def test_what_fails_after_the_last_size_is_not_booked_on_it(where):
    failed = []

    def once(what, setting_id, size_bytes):
        if what == where and setting_id == BEST.id and not failed:
            failed.append(1)
            raise RankFailure("hang", f"hung in {where}", 0, group_alive=False)

    outcome, walk, measured = confirm(FakeSession(times, on=once))
    assert (outcome, walk.num_launches, walk.problem) == ("complete", LAUNCHES, "")
    assert {m.status for m in measured} == {"ok"}
    if where == "others":
        assert walk.faults == {OTHER_COLLECTIVES: "hang: hung in others"}
    else:
        assert not any(walk.faults.values())


def test_a_size_without_an_algorithm_costs_that_size_only():
    none = Resolution(errors={SIZES[0]: "no algorithm/protocol available for function AllReduce"})
    _, walk, measured = confirm(FakeSession(times, resolutions={BEST.id: none}))
    again = {m.size_bytes: m.status for m in measured if m.setting.id == BEST.id and m.repeat}
    assert again == {SIZES[0]: "unsupported", SIZES[1]: "ok"}
    assert walk.num_launches == 0


def test_a_winner_that_was_never_scanned_itself_is_scanned_first():
    """Its smaller form, say: what the run's plan holds must be in the run, or a resume would measure it."""
    session = FakeSession(times)
    _, walk, measured = confirm(session, scanned=[m for m in scanned_cases() if m.setting.id == "base"])
    assert [m.size_bytes for m in measured if m.setting.id == BEST.id and not m.repeat] == SIZES
    assert walk.num_launches == LAUNCHES


def test_what_a_race_left_out_is_measured():
    best, *rest = (scanned_cases(BEST), *(scanned_cases(s, SIZES[1:], status="skipped") for s in ablations(BEST)))
    left_out = [m for one in rest for m in one if m.setting.id != "base"]
    _, _, measured = confirm(FakeSession(times), scanned=[*best, *left_out])
    assert {m.status for m in measured} == {"ok"}


def test_over_budget_is_not_complete():
    outcome, walk, _ = confirm(FakeSession(times), best=Setting.make({"NCCL_PROTO": "LL"}), budget_s=0.0)
    assert (outcome, walk.num_launches) == ("time_limit", 0)


@pytest.mark.parametrize("env", [{"NCCL_PROTO": "LL"}, {"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "8"}])
def test_a_single_decision_needs_no_ablation(env):
    best = Setting.make(env)
    _, _, measured = confirm(FakeSession(times), best)
    assert {m.setting.id for m in measured} == {"base", best.id}


EXACT = {**BEST.env, "NCCL_ALGO": "allreduce:ring", "NCCL_PROTO": "allreduce:LL"}


def test_the_written_form_is_opened_and_counts_for_the_scanned_setting():
    same = Resolution(choices=dict.fromkeys(SIZES, SCANNED))
    exact_id = Setting.make(EXACT).id
    session = FakeSession(times, resolutions={exact_id: same, BEST.id: same})
    _, _, measured = confirm(session, scanned=scanned_cases(choice=SCANNED), exact_env=EXACT)
    assert exact_id in session.opened()
    assert BEST.id not in session.opened()
    repeats = [m for m in measured if m.repeat and m.setting.id == BEST.id]
    assert len(repeats) == LAUNCHES * len(SIZES)
    assert {m.status for m in repeats} == {"ok"}


@pytest.mark.parametrize(
    ("otherwise", "why"),
    [
        ({"algo": "Tree"}, "NCCL used Tree"),
        ({"num_channels": 8}, "resolves to another choice than when it was scanned"),
    ],
)
def test_a_written_form_that_resolves_otherwise_is_not_credited(otherwise, why):
    other = Resolution(choices={size: SCANNED.model_copy(update=otherwise) for size in SIZES})
    session = FakeSession(times, resolutions={Setting.make(EXACT).id: other})
    _, walk, measured = confirm(session, scanned=scanned_cases(choice=SCANNED), exact_env=EXACT)
    first = [m for m in measured if m.repeat and m.setting.id == BEST.id and m.size_bytes == SIZES[0]]
    assert {m.status for m in first} == {"not_in_force"}
    assert walk.num_launches == 0
    assert why in walk.problem
