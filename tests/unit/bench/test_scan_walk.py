"""The walk over a plan with a fake session: what a failure costs, what is shared, what is monitored, how it ends."""

from dataclasses import replace

import pytest
from fake_session import FakeSession, MemoryRun, fake_plan

from nccltune.bench import scan as scan_module
from nccltune.bench.drift import MAX_DRIFT
from nccltune.bench.effective import Resolution
from nccltune.bench.group import RankFailure
from nccltune.bench.options import ScanOptions
from nccltune.bench.scan import Scan
from nccltune.plan import Grid
from nccltune.schemas.measurement import Choice, Rejected
from nccltune.schemas.setting import Setting

SIZES = [1024, 2048, 4096]
LL, SIMPLE = "NCCL_PROTO=LL", "NCCL_PROTO=Simple"
GRID = Grid(protos=("LL", "Simple"))


def fail_at(*moments, kind="crash", group_alive=False, once=False):
    """Raise at (what, setting id, size); None as size: always."""
    left = list(moments)

    def on(what, setting_id, size):
        if (what, setting_id, size) in left:
            if once:
                left.remove((what, setting_id, size))
            raise RankFailure(kind, f"{what} failed", 0, group_alive=group_alive)

    return on


def walk(session, plan=None, run=None, **options):
    run = run or MemoryRun()
    events = []
    walked = Scan(run, plan or fake_plan(GRID, SIZES), session, ScanOptions(**options), events.append)
    return run, walked.walk(), events


def statuses(run, setting_id):
    return [m.status for m in run.all_measurements() if m.setting.id == setting_id and not m.repeat]


def flat(setting_id, size):
    return 10.0


def test_every_case_is_recorded_once_and_the_base_is_first_and_last():
    session = FakeSession(flat)
    run, outcome, events = walk(session)
    assert outcome == "complete"
    assert [len([m for m in run.lines if m.setting.id == s and not m.repeat]) for s in ("base", LL, SIMPLE)] == [
        3,
        3,
        3,
    ]
    opened = [setting_id for what, setting_id in session.calls if what == "open"]
    assert (opened[0], opened[-1], sorted(opened)) == (
        "base",
        "base",
        ["NCCL_PROTO=LL", "NCCL_PROTO=Simple", "base", "base"],
    )
    assert session.calls[-1] == ("forget", ""), "the ranks are ended"
    assert [m.order for m in run.lines] == list(range(len(run.lines)))
    assert events[-1].num_done == events[-1].num_total == 9
    # Walking again finds nothing to do and starts nothing.
    again = FakeSession(flat)
    assert walk(again, run=run)[1] == "complete"
    assert again.opened() == set()


@pytest.mark.parametrize(("failing", "expected"), [(1, ["error", "ok", "ok"]), (2, ["error", "error", "error"])])
def test_a_setting_is_given_up_after_two_failures(failing, expected):
    moments = [("measure", LL, size) for size in SIZES[:failing]]
    session = FakeSession(flat, on=fail_at(*moments))
    run, outcome, _ = walk(session)
    assert (outcome, statuses(run, LL)) == ("complete", expected)
    assert (statuses(run, "base"), statuses(run, SIMPLE)) == (["ok"] * 3, ["ok"] * 3)
    assert [setting_id for what, setting_id in session.calls if what == "open"].count(LL) == 2
    assert scan_module.MAX_FAILURES_PER_SETTING == 2


def test_a_setting_that_cannot_be_opened_is_tried_once_and_the_base_twice():
    session = FakeSession(flat, on=fail_at(("open", LL, None), ("open", "base", None)))
    run, outcome, _ = walk(session)
    assert outcome == "complete"
    assert statuses(run, LL) == statuses(run, "base") == ["error"] * 3
    opened = [setting_id for what, setting_id in session.calls if what == "open"]
    assert (opened.count(LL), opened.count("base")) == (1, 2), "and there is no base to monitor"
    session = FakeSession(flat, on=fail_at(("open", "base", None), once=True))
    assert statuses(walk(session)[0], "base") == ["ok"] * 3


def test_a_communicator_that_cannot_be_closed_costs_no_case():
    session = FakeSession(flat, on=fail_at(("close", LL, None), kind="hang"))
    run, outcome, events = walk(session)
    assert (outcome, statuses(run, LL), statuses(run, SIMPLE)) == ("complete", ["ok"] * 3, ["ok"] * 3)
    assert any(e.kind == "note" and "LL is measured, but leaving it failed" in e.text for e in events)


def test_a_hang_is_a_timeout_and_an_unsupported_pair_is_unsupported():
    session = FakeSession(flat, on=fail_at(("measure", LL, 1024), kind="hang"))
    assert statuses(walk(session)[0], LL) == ["timeout", "ok", "ok"]
    errors = {size: "NCCL WARN no algorithm/protocol available for function AllReduce" for size in SIZES[:1]}
    session = FakeSession(flat, resolutions={LL: Resolution(errors=errors)})
    run, _, _ = walk(session)
    assert statuses(run, LL) == ["unsupported", "ok", "ok"]
    assert run.lines[0].error is None


@pytest.mark.parametrize(
    ("backend", "alive", "expected"),
    [("nccl", True, "abort"), ("nccl", False, "forget"), ("gloo", True, "forget"), ("torch", True, "forget")],
)
def test_ranks_are_kept_only_where_a_communicator_can_be_left_alone(backend, alive, expected):
    session = FakeSession(flat, on=fail_at(("measure", "base", 2048), group_alive=alive, kind="shm_space"))
    run, _, _ = walk(session, fake_plan(Grid(), SIZES, backend=backend))
    assert statuses(run, "base") == ["ok", "error", "ok"]
    assert next(what for what, _ in session.calls if what in ("abort", "forget", "close")) == expected


def test_a_failure_of_an_eager_case_leaves_both_communicators():
    session = FakeSession(flat, on=fail_at(("measure", LL, 1024), group_alive=True, once=True))
    run, _, _ = walk(session, fake_plan(GRID, SIZES, timings=("eager",)))
    assert statuses(run, LL) == ["error", "ok", "ok"]
    assert session.calls.count(("abort", LL)) == 2
    opened, left = (sum(what in names for what, _ in session.calls) for names in (["open"], ["close", "abort"]))
    assert opened == left


def test_wrong_sums_give_no_time():
    run, _, _ = walk(FakeSession(flat, wrong={(LL, 2048)}))
    assert statuses(run, LL) == ["ok", "wrong_results", "ok"]
    [wrong] = [m for m in run.lines if m.status == "wrong_results"]
    assert (wrong.samples_us, wrong.num_wrong, wrong.num_checked) == ([], 1, 2048)


def test_what_did_not_take_effect_is_not_measured_and_names_the_case_of_the_base():
    refused = Rejected(variable="NCCL_PROTO", requested="LL", in_force="Simple", message="NCCL says no")
    session = FakeSession(flat, resolutions={LL: Resolution(rejected=[refused])})
    run, _, _ = walk(session)
    assert statuses(run, LL) == ["not_in_force"] * 3
    base = {m.size_bytes: m.case_id for m in run.lines if m.setting.id == "base" and not m.repeat}
    for m in run.lines:
        if m.setting.id == LL:
            assert (m.same_as, m.samples_us, m.rejected) == (base[m.size_bytes], [], [refused])
    assert ("measure", LL) not in session.calls


def test_a_base_variable_without_effect_is_told_once_and_costs_no_setting():
    session = FakeSession(flat)
    plan = replace(fake_plan(GRID, SIZES), base_env={"NCCL_SHM_DISABLE": "1"})
    unread = Resolution(not_read=["NCCL_SHM_DISABLE"])
    both = Setting.make({**plan.base_env, "NCCL_PROTO": "LL"}).id
    session.resolutions = {both: unread, "NCCL_SHM_DISABLE=1": unread}
    run, _, events = walk(session, plan)
    assert statuses(run, LL) == ["ok"] * 3
    assert run.manifest.notes == ["base: NCCL never read NCCL_SHM_DISABLE"]
    assert [e.text for e in events if e.kind == "note"] == run.manifest.notes, "though the base is opened twice"


def test_settings_with_the_same_choice_share_a_measurement_unless_told_otherwise():
    choices = {size: Choice(algo="Ring", proto="LL", num_channels=4) for size in SIZES}
    both = {"base": Resolution(choices=choices), LL: Resolution(choices=choices)}
    session = FakeSession(flat, resolutions=both)
    run, _, _ = walk(session)
    shared = [m for m in run.lines if m.setting.id == LL]
    assert all(m.status == "ok" and m.same_as and m.samples_us for m in shared)
    assert ("measure", LL) not in session.calls
    session = FakeSession(flat, resolutions=both)
    walk(session, dedup=False)
    assert session.calls.count(("measure", LL)) == 3


def test_drift_is_flagged_with_its_window_and_kept_in_the_manifest():
    seen = []

    def slower_at_the_end(setting_id, size):
        seen.append(setting_id)
        return 15.0 if seen.count("base") > 3 else 10.0

    run, _, events = walk(FakeSession(slower_at_the_end))
    repeats = [m for m in run.lines if m.repeat]
    assert [m.size_bytes for m in repeats] == SIZES
    assert all("the base moved by +" in m.warnings[0] for m in repeats)
    assert sum(e.kind == "note" and "drift" in e.text for e in events) == 3
    [note] = run.manifest.notes
    # Nine cases before the monitor (orders 0 to 8), then three repetitions (9 to 11).
    assert "during cases 0-11 (field order)" in note
    assert note.startswith(f"drift: the base moved by more than {100 * MAX_DRIFT:.0f}%")
    [span] = run.manifest.options["walks"]
    assert (span["first_order"], span["next_order"]) == (0, 12)


def test_a_quiet_machine_is_not_flagged():
    run, _, events = walk(FakeSession(flat))
    assert run.manifest.notes == []
    assert not [e for e in events if "drift" in e.text]


def test_the_budget_ends_between_cases_and_what_is_left_is_measured_later(monkeypatch):
    now = iter(range(1000))
    monkeypatch.setattr(scan_module.time, "monotonic", lambda: float(next(now)))
    run, outcome, _ = walk(FakeSession(flat), time_budget_s=20.0)
    assert outcome == "time_limit"
    done = len(run.lines)
    assert 0 < done < 9
    session = FakeSession(flat)
    _, outcome, _ = walk(session, run=run)
    assert outcome == "complete"
    assert len([m for m in run.lines if not m.repeat]) == 9


def test_failed_cases_are_measured_again_only_on_request():
    run, _, _ = walk(FakeSession(flat, on=fail_at(("measure", LL, 1024))))
    session = FakeSession(flat)
    walk(session, run=run)
    assert ("measure", LL) not in session.calls
    walk(FakeSession(flat), run=run, retry_failed=True)
    assert statuses(run, LL) == ["ok"] * 3


def test_a_resumed_run_numbers_repetitions_behind_all_it_holds():
    """A monitor that failed used numbers without a record: counting the records would give some out again."""
    run = MemoryRun()
    first = Scan(run, fake_plan(GRID, SIZES), FakeSession(flat), ScanOptions(monitor_every=1), None)
    first.walk()
    # The first repetition is lost, as one is whose monitor failed; another one failed and is to be measured again.
    lost, failed, *_ = [m for m in run.lines if m.repeat]
    run.lines.remove(lost)
    run.lines[run.lines.index(failed)] = failed.model_copy(update={"status": "error", "samples_us": [], "stats": None})
    more = fake_plan(Grid(protos=("LL", "Simple"), algos=("Ring",)), SIZES)
    Scan(run, more, FakeSession(flat), ScanOptions(monitor_every=1, retry_failed=True), None).walk()
    assert len({m.case_id for m in run.lines if m.repeat}) == sum(1 for m in run.lines if m.repeat)
    assert len({m.order for m in run.lines}) == len(run.lines)
