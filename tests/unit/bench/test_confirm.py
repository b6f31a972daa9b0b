"""Confirming a winner: fresh launches in turn with the base, each variable taken away once, the other collectives run."""

import pytest
from fake_session import FakeSession, MemoryRun, fake_plan

from nccltune.bench.confirm import LAUNCHES, Confirm, ablations
from nccltune.bench.effective import Resolution
from nccltune.bench.group import RankFailure
from nccltune.bench.options import ScanOptions
from nccltune.bench.records import record
from nccltune.plan import Grid
from nccltune.schemas.measurement import Choice
from nccltune.schemas.setting import Setting
from nccltune.stats import summarize

SIZES = [14336, 57344]
BEST = Setting.make({"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_MIN_NCHANNELS": "16", "NCCL_MAX_NCHANNELS": "16"})


def confirm(session, best=BEST, scanned=(), **options):
    plan = fake_plan(Grid(named=(best, *ablations(best))), SIZES)
    run = MemoryRun()
    run.append(list(scanned))
    walk = Confirm(run, plan, session, ScanOptions(), best=best, **options)
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
    assert {m.setting.id for m in measured if not m.repeat} == {s.id for s in ablations(BEST)}


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

    outcome, _, measured = confirm(FakeSession(times, on=once))
    assert outcome == "complete"
    lost = [m for m in measured if m.status == "timeout"]
    assert [(m.setting.id, m.size_bytes, m.repeat > 0) for m in lost] == [(BEST.id, SIZES[0], True)]
    assert sum(1 for m in measured if m.setting.id == BEST.id and m.status == "ok") == (LAUNCHES - 1) * len(SIZES)


def test_wrong_sums_in_a_confirmation_are_recorded():
    _, _, measured = confirm(FakeSession(times, wrong={(BEST.id, SIZES[1])}))
    assert {m.status for m in measured if m.setting.id == BEST.id and m.size_bytes == SIZES[1]} == {"wrong_results"}


@pytest.mark.parametrize("env", [{"NCCL_PROTO": "LL"}, {"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "8"}])
def test_a_single_decision_needs_no_ablation(env):
    best = Setting.make(env)
    _, _, measured = confirm(FakeSession(times), best)
    assert all(m.repeat for m in measured)


EXACT = {**BEST.env, "NCCL_ALGO": "allreduce:ring", "NCCL_PROTO": "allreduce:LL"}
SCANNED = Choice(algo="Ring", proto="LL", num_channels=16, num_threads=512)


def scanned_cases():
    plan = fake_plan(Grid(named=(BEST,)), SIZES)
    case = plan.case(BEST, SIZES[0], "in-forward")
    return [record(case, "ok", samples_us=[8.0], stats=summarize([8.0]).to_dict(), choice=SCANNED, in_force=True)]


def test_the_written_form_is_opened_and_counts_for_the_scanned_setting():
    same = Resolution(choices=dict.fromkeys(SIZES, SCANNED))
    exact_id = Setting.make(EXACT).id
    session = FakeSession(times, resolutions={exact_id: same, BEST.id: same})
    _, _, measured = confirm(session, scanned=scanned_cases(), exact_env=EXACT)
    assert exact_id in session.opened()
    assert BEST.id not in session.opened()
    repeats = [m for m in measured if m.repeat and m.setting.id == BEST.id]
    assert len(repeats) == LAUNCHES * len(SIZES)
    assert {m.status for m in repeats} == {"ok"}


def test_a_written_form_that_resolves_otherwise_is_not_credited():
    other = Resolution(choices={size: SCANNED.model_copy(update={"algo": "Tree"}) for size in SIZES})
    session = FakeSession(times, resolutions={Setting.make(EXACT).id: other})
    _, _, measured = confirm(session, scanned=scanned_cases(), exact_env=EXACT)
    first = [m for m in measured if m.repeat and m.setting.id == BEST.id and m.size_bytes == SIZES[0]]
    assert {m.status for m in first} == {"not_in_force"}
