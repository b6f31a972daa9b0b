"""The race over a fake session: times are known, so the true best is known. What it may skip, and what it must not."""

import random

import numpy as np
import pytest
from fake_session import FakeSession, MemoryRun, fake_plan

from nccltune.bench.effective import Resolution
from nccltune.bench.group import RankFailure
from nccltune.bench.options import ScanOptions
from nccltune.bench.race import MONITOR_EVERY, Race
from nccltune.plan import Grid
from nccltune.schemas.measurement import Rejected
from nccltune.schemas.setting import parse_setting

DECODE = (14336, 43008, 229376)
SIZES = [*DECODE, 8 << 20]
# 6 parents, each with 6 channel counts, 2 buffer sizes and their 12 pairs: 126 settings and the base.
GRID = Grid(
    protos=("LL", "LL128", "Simple"), algos=("Ring", "Tree"), channels=("default", "1", "2", "4", "8", "16", "32"),
    buffsizes=("default", "1048576", "16777216"),
)  # fmt: skip
PLAN = fake_plan(GRID, SIZES)
BY_ID = {s.id: s for s in PLAN.settings}


def family(setting_id):
    env = BY_ID[setting_id].env
    return env.get("NCCL_PROTO", ""), env.get("NCCL_ALGO", "")


class Landscape:
    """Times by family, channels and buffer; a buffer acts on Simple alone, as in NCCL."""

    def __init__(self, families, channels=None, buffers=None):
        self.families, self.channels, self.buffers = families, channels or {}, buffers or {}

    def __call__(self, setting_id, size):
        if setting_id == "base":
            return 10.0
        env, key = BY_ID[setting_id].env, family(setting_id)
        factor = self.families[key] * self.channels.get((key, env.get("NCCL_MIN_NCHANNELS")), 1.0)
        if env["NCCL_PROTO"] == "Simple":
            factor *= self.buffers.get((key, env.get("NCCL_BUFFSIZE")), 1.0)
        return 10.0 * factor

    def decode(self, setting_id):
        """True score at decode sizes, relative to the base."""
        return sum(self(setting_id, size) / 10.0 for size in DECODE) / len(DECODE)

    def best(self):
        return min(self.decode(s.id) for s in PLAN.settings)


FAMILIES = sorted({family(s.id) for s in PLAN.settings if s.env})
CHANNELS = ("1", "2", "4", "8", "16", "32")


def random_landscape(seed):
    """Families up to 4 times the best apart; channels change a time by -10% to +100%, much alike in every family."""
    rng = random.Random(seed)
    families = {key: 0.9 * 4 ** rng.random() for key in FAMILIES}
    families[rng.choice(FAMILIES)] = 0.95
    common = {c: rng.choice((0.9, 0.95, 1.0, 1.3, 2.0)) for c in CHANNELS}
    channels = {(key, c): common[c] * rng.uniform(0.98, 1.02) for key in FAMILIES for c in CHANNELS}
    buffers = {(key, b): rng.uniform(0.97, 1.1) for key in FAMILIES for b in ("1048576", "16777216")}
    return Landscape(families, channels, buffers)


def race(landscape, run=None, session=None, **options):
    session = session or FakeSession(landscape, launch_noise=0.002)
    run = run or MemoryRun()
    outcome = Race(run, PLAN, session, ScanOptions(decode_sizes=DECODE, **options)).walk()
    return run, session, outcome


def winner(run):
    """The setting with the best measured mean over the decode sizes."""
    times = {}
    for m in run.all_measurements():
        if m.status == "ok" and not m.repeat and m.size_bytes in DECODE:
            times.setdefault(m.setting.id, []).append(m.median_us)
    return min((sum(t), key) for key, t in times.items() if len(t) == len(DECODE))[1]


def test_random_landscapes_are_won_within_one_percent_with_well_under_half_opened():
    regrets, shares = [], []
    for seed in range(6):
        landscape = random_landscape(seed)
        run, session, outcome = race(landscape, session=FakeSession(landscape, launch_noise=0.002, seed=seed))
        assert outcome == "complete"
        regrets.append(landscape.decode(winner(run)) / landscape.best() - 1)
        shares.append(len(session.opened()) / len(PLAN.settings))
    assert max(regrets) < 0.01, regrets
    assert np.mean(shares) < 0.35, shares
    assert max(shares) < 0.5, shares


def test_nothing_whose_interval_overlaps_the_best_is_dropped():
    """Two families within half a percent: both are opened with their channels, whichever measures better first."""
    near, also, rest = FAMILIES[0], FAMILIES[3], 3.0
    families = {key: rest for key in FAMILIES} | {near: 0.900, also: 0.904}
    landscape = Landscape(families, channels={(also, "8"): 0.99})
    run, session, _ = race(landscape)
    for key in (near, also):
        for channels in CHANNELS:
            assert any(
                family(i) == key and BY_ID[i].env.get("NCCL_MIN_NCHANNELS") == channels for i in session.opened()
            )
    measured = {m.setting.id for m in run.lines if m.status == "ok" and m.size_bytes in DECODE}
    close = {
        s.id
        for s in PLAN.settings
        if landscape.decode(s.id) < landscape.best() * 1.005 and "NCCL_BUFFSIZE" not in s.env
    }
    assert close <= measured


def test_a_family_behind_is_opened_when_what_its_children_gain_could_carry_it():
    """Tree is 12% behind as NCCL chooses; eight channels gain 25% there, and nothing in the family that leads."""
    lead, behind = ("LL", "Ring"), ("LL", "Tree")
    landscape = Landscape({key: 4.0 for key in FAMILIES} | {lead: 0.9, behind: 1.008}, channels={(behind, "8"): 0.75})
    run, _, _ = race(landscape)
    assert winner(run).startswith("NCCL_ALGO=Tree")
    assert landscape.decode(winner(run)) == landscape.best()


def test_a_gain_seen_on_this_machine_widens_what_other_families_may_gain():
    """Eight channels gain 40% in the family that leads, so 46% behind its best is no longer out of reach.

    Tree's parent at 1.0 is bound by 1.0 x (1 - 15%) = 0.85 at first, beyond the best (0.54 after the lead's channels), and by about
    1.0 x (1 - 40%) = 0.6, less both intervals of 3%, once that gain has been seen.
    """
    lead, behind = ("LL", "Ring"), ("LL", "Tree")
    channels = {(lead, "8"): 0.6, (behind, "8"): 0.52}
    landscape = Landscape({key: 9.0 for key in FAMILIES} | {lead: 0.9, behind: 1.0}, channels=channels)
    run, _, _ = race(landscape)
    assert landscape.decode(winner(run)) == pytest.approx(0.52)


def test_what_is_left_out_is_recorded_with_a_reason_and_hopeless_families_stay_shut():
    landscape = Landscape({key: 4.0 for key in FAMILIES} | {("LL", "Ring"): 0.9})
    run, session, _ = race(landscape)
    recorded = {m.case_id: m for m in run.all_measurements() if not m.repeat}
    assert len(recorded) == PLAN.num_cases, "every case of the plan has a record"
    skipped = [m for m in recorded.values() if m.status == "skipped"]
    assert all(m.warnings and m.warnings[0].startswith("race: ") and not m.samples_us for m in skipped)
    children = [i for i in session.opened() if i in BY_ID and family(i) == ("Simple", "Tree")]
    assert children == ["NCCL_ALGO=Tree; NCCL_PROTO=Simple"], "only the parent of a family four times slower"
    # The winner and the base have every size, prefill too.
    for setting_id in ("base", winner(run)):
        assert [m.status for m in recorded.values() if m.setting.id == setting_id] == ["ok"] * len(SIZES)


def test_a_buffer_that_does_not_act_on_the_protocol_is_not_opened():
    _, session, _ = race(Landscape(dict.fromkeys(FAMILIES, 0.9)))
    inert = [i for i in session.opened() if "NCCL_BUFFSIZE" in i and "NCCL_PROTO=Simple" not in i]
    assert inert == []


@pytest.mark.parametrize("what", ["wrong", "unsupported", "fails"])
def test_a_family_whose_parent_cannot_be_used_is_not_opened(what):
    bad = "NCCL_ALGO=Tree; NCCL_PROTO=LL128"
    landscape = Landscape(dict.fromkeys(FAMILIES, 1.0) | {("LL128", "Tree"): 0.5})
    session = FakeSession(landscape)
    if what == "wrong":
        session.wrong = {(bad, DECODE[1])}
    elif what == "unsupported":
        session.resolutions = {bad: Resolution(errors=dict.fromkeys(SIZES, "no algorithm/protocol available"))}
    else:
        session.on = lambda op, setting_id, size: _raise(op) if (op, setting_id) == ("open", bad) else None
    run, _, outcome = race(landscape, session=session)
    assert outcome == "complete"
    assert [i for i in session.opened() if i in BY_ID and family(i) == ("LL128", "Tree")] == [bad]
    reasons = {
        m.warnings[0]
        for m in run.lines
        if m.status == "skipped" and family(m.setting.id) == ("LL128", "Tree") and not m.same_as
    }
    assert reasons == {"race: its algorithm or protocol does not run here"}
    assert "LL128" not in winner(run)


def test_a_setting_that_did_not_take_effect_never_wins():
    bad = "NCCL_ALGO=Ring; NCCL_PROTO=LL"
    rejected = [Rejected(variable="NCCL_PROTO", requested="LL", message="no")]
    landscape = Landscape(dict.fromkeys(FAMILIES, 1.0) | {("LL", "Ring"): 0.1})
    session = FakeSession(
        landscape,
        resolutions={s.id: Resolution(rejected=rejected) for s in PLAN.settings if family(s.id) == ("LL", "Ring")},
    )
    run, _, _ = race(landscape, session=session)
    assert {m.status for m in run.lines if m.setting.id == bad and m.size_bytes in DECODE} == {"not_in_force"}
    assert [i for i in session.opened() if i in BY_ID and family(i) == ("LL", "Ring")] == [bad]
    assert family(winner(run)) != ("LL", "Ring")


def _raise(op):
    raise RankFailure("nccl", f"{op} failed", 0, group_alive=True)


@pytest.mark.parametrize("setting", ["NCCL_ALGO=Ring; NCCL_PROTO=LL", "base"])
def test_one_hang_of_a_parent_or_of_the_base_shuts_nothing(setting):
    landscape = Landscape(dict.fromkeys(FAMILIES, 1.2) | {("LL", "Ring"): 0.8})
    session, failed = FakeSession(landscape), []

    def once(op, setting_id, size):
        if (op, setting_id) == ("measure", setting) and not failed:
            failed.append(1)
            raise RankFailure("hang", "rank 1 did not answer", 1, group_alive=False)

    session.on = once
    run, _, outcome = race(landscape, session=session)
    assert outcome == "complete"
    assert failed
    assert family(winner(run)) == ("LL", "Ring")
    assert len(session.opened()) < len(PLAN.settings)
    assert {m.status for m in run.all_measurements()} == {"ok", "skipped"}
    assert len(run.all_measurements()) - sum(1 for m in run.all_measurements() if m.repeat) == PLAN.num_cases


def test_a_race_stopped_while_it_finishes_leaves_the_winner_to_the_resume():
    landscape = Landscape(dict.fromkeys(FAMILIES, 1.2) | {("LL", "Ring"): 0.8})
    run, stopped = MemoryRun(), FakeSession(landscape)
    walk = Race(run, PLAN, stopped, ScanOptions(decode_sizes=DECODE))
    stopped.on = lambda op, _, size: setattr(walk._stop, "requested", walk._stop.requested or size == SIZES[-1])
    assert walk.walk() == "interrupted"
    assert not [m for m in run.lines if m.status == "skipped"]
    _, _, outcome = race(landscape, run=run, session=FakeSession(landscape))
    assert outcome == "complete"
    best = winner(run)
    assert {m.status for m in run.all_measurements() if m.setting.id == best} == {"ok"}


def test_the_base_is_looked_at_through_the_race():
    run, session, _ = race(Landscape(dict.fromkeys(FAMILIES, 0.9)))
    positions = [number for number, m in enumerate(run.lines) if m.repeat]
    assert len(session.opened()) > 2 * MONITOR_EVERY
    assert len({m.repeat for m in run.lines if m.repeat}) >= 3 * (len(session.opened()) // MONITOR_EVERY)
    assert min(positions) < len(run.lines) / 3


@pytest.mark.parametrize("after", [1, 40])
def test_a_race_that_was_stopped_goes_on_and_measures_nothing_twice(after):
    landscape = random_landscape(3)
    run, stopped = MemoryRun(), FakeSession(landscape, seed=1)
    walk = Race(run, PLAN, stopped, ScanOptions(decode_sizes=DECODE))
    stopped.on = lambda op, *_: setattr(walk._stop, "requested", len(run.lines) >= after)
    assert walk.walk() == "interrupted"
    done = [(m.setting.id, m.size_bytes) for m in run.lines]
    assert len(done) < PLAN.num_cases
    _, _, outcome = race(landscape, run=run, session=FakeSession(landscape, seed=2))
    assert outcome == "complete"
    cases = [m.case_id for m in run.lines if not m.repeat]
    assert len(cases) == len(set(cases)) == PLAN.num_cases
    assert landscape.decode(winner(run)) < 1.01 * landscape.best()


def test_a_time_limit_during_the_first_stage_is_told():
    """All decode sizes may be done while the rest of the plan is not: the run is not complete."""
    landscape = random_landscape(5)
    _, _, outcome = race(landscape, time_budget_s=0.05)
    assert outcome == "time_limit"


def test_the_seed_fixes_the_order():
    landscape = random_landscape(7)
    orders = [
        [(m.setting.id, m.size_bytes) for m in race(landscape, session=FakeSession(landscape))[0].lines]
        for _ in range(2)
    ]
    assert orders[0] == orders[1]


def test_settings_named_by_hand_race_too():
    """A named setting whose family has no plain member stands for itself."""
    named = parse_setting("NCCL_PROTO=LL;NCCL_MAX_NCHANNELS=16;NCCL_NTHREADS=512", "mine")
    plan = fake_plan(Grid(protos=("Simple",), named=(named,)), SIZES)
    session = FakeSession(lambda setting_id, size: {"base": 10.0, named.id: 8.0}.get(setting_id, 9.0))
    run = MemoryRun()
    assert Race(run, plan, session, ScanOptions(decode_sizes=DECODE)).walk() == "complete"
    assert winner(run) == named.id
