"""The walk beside NCCL over fake ranks: what is recorded when a method works, is not there, refuses, fails or hangs."""

from types import SimpleNamespace

import numpy as np
import pytest

from nccltune.bench.beside_walk import BesideWalk, beside_cases
from nccltune.bench.effective import Resolution
from nccltune.bench.group import RankFailure
from nccltune.bench.options import ScanOptions
from nccltune.bench.sampling import Samples
from nccltune.bench.session import Communicator, Library, UnavailableError
from nccltune.errors import MachineError
from nccltune.methods import METHODS, peer_access_off
from nccltune.plan import Grid, make_plan
from nccltune.schemas.measurement import Choice
from nccltune.schemas.setting import BASE

SIZES = [1024, 4096]
NAMES = [method.name for method in METHODS]


def make(sizes=SIZES, base_extra=None):
    return make_plan(
        Grid(), size_bytes=sizes, timings=["in-forward", "back-to-back"], num_ranks=2, dtype="bfloat16", base="sglang", backend="nccl",
        base_extra=base_extra,
    )  # fmt: skip


class FakeSession:
    """Opens and times as told; counts what happens to it."""

    def __init__(self, opening=None, errors=None, wrong=0, failing=()):
        self.opening, self.errors, self.wrong = opening or {}, errors or {}, wrong
        self.failing = list(failing)
        self.opened, self.closed, self.forgotten, self.seeds = [], 0, 0, []

    def open_beside(self, method, base_env, size_bytes):
        self.opened.append((method.name, {**base_env, **method.env}["NCCL_CUMEM_ENABLE"]))
        problem = self.opening.get(method.name)
        if problem is not None:
            raise problem
        choices = {size: Choice(kernel="k", source="graph-node") for size in size_bytes}
        return Communicator(len(self.opened), Library("", ""), {}, Resolution(choices=choices, errors=self.errors))

    def check(self, comm, size_bytes, seeds):
        self.seeds += seeds
        return self.wrong, 512

    def measure(self, comm, size_bytes, timing, num_per_replay, weight_bytes, rule):
        if self.failing:
            raise self.failing.pop(0)
        return Samples(np.full(20, 5.0), 30.0, "interval")

    def close(self, comm):
        self.closed += 1

    def forget(self):
        self.forgotten += 1


@pytest.fixture
def walked():
    def walk(session, plan=None, done=(), stop_after=10_000):
        records, notes, recovered = [], [], []
        BesideWalk(
            plan or make(), session, ScanOptions(), done=set(done), record=records.append,
            must_end=lambda: len(records) >= stop_after, note=notes.append, recover=lambda f, c: recovered.append((f, c)),
        ).walk()  # fmt: skip
        return SimpleNamespace(
            records=records, notes=notes, recovered=recovered, by=lambda name: [m for m in records if m.method == name]
        )

    return walk


def failure(kind="cuda", text="an illegal memory access was encountered", alive=False):
    return RankFailure(kind, text, 1, group_alive=alive)


def test_every_method_is_measured_at_every_size_and_timing(walked):
    session = FakeSession()
    result = walked(session)
    assert [name for name, _ in session.opened] == NAMES
    # Windows need cuMem, which the base of SGLang switches off; the others keep the base.
    assert [value for _, value in session.opened] == ["1", "0", "0", "0", "0"]
    assert session.closed == len(NAMES)
    assert len(result.records) == len(NAMES) * 2 * 2
    first = result.records[0]
    assert (first.status, first.method, first.median_us, first.compute_us) == ("ok", "nccl-windows", 5.0, 30.0)
    assert first.in_force is True
    assert first.choice.kernel == "k"
    assert first.setting.name == "NCCL with registered windows"
    assert result.notes == []


def test_a_window_without_a_symmetric_kernel_is_said_with_its_cases(walked):
    result = walked(FakeSession())
    assert {tuple(m.warnings) for m in result.by("nccl-windows")} == {("NCCL used k, no symmetric kernel",)}
    assert {tuple(m.warnings) for m in result.by("symm-mem-one-shot")} == {()}


def test_its_cases_are_never_those_of_a_setting():
    plan = make()
    ids = {case.id for case in beside_cases(plan)}
    assert len(ids) == len(NAMES) * 4
    assert ids.isdisjoint(case.id for case in plan.cases())
    # An id from before there were methods stays what it was: "nccl" is no part of it.
    case = plan.case(BASE, 1024, "in-forward")
    assert case.id == case.model_copy(update={"method": "nccl"}).id


def test_an_unavailable_method_is_a_record_with_its_reason_and_the_walk_goes_on(walked):
    session = FakeSession(opening={"sglang-custom-v2": UnavailableError("sgl_kernel is not installed")})
    result = walked(session)
    mine = result.by("sglang-custom-v2")
    assert {m.status for m in mine} == {"unsupported"}
    assert mine[0].error.message == "sgl_kernel is not installed"
    assert len(mine) == 4
    assert result.notes == ["beside NCCL: SGLang custom all-reduce v2: sgl_kernel is not installed"]
    assert result.recovered == []
    assert {m.status for m in result.by("sglang-custom-v1")} == {"ok"}


def test_a_refused_size_is_unsupported_and_a_broken_one_an_error(walked):
    session = FakeSession(errors={4096: "Refused: SGLang gives messages of 4096 B to NCCL", 1024: "CUDA error: oops"})
    mine = walked(session).by("sglang-custom-v1")
    assert {(m.size_bytes, m.status) for m in mine} == {(1024, "error"), (4096, "unsupported")}
    assert next(m for m in mine if m.size_bytes == 4096).error.message == "SGLang gives messages of 4096 B to NCCL"


def test_wrong_sums_are_a_record_without_times(walked):
    result = walked(FakeSession(wrong=3))
    assert {(m.status, m.num_wrong) for m in result.records} == {("wrong_results", 3)}


def test_a_failure_costs_its_case_and_the_method_opens_again(walked):
    session = FakeSession(failing=[failure()])
    result = walked(session)
    assert [m.status for m in result.by("nccl-windows")] == ["error", "ok", "ok", "ok"]
    assert [name for name, _ in session.opened][:2] == ["nccl-windows", "nccl-windows"]
    assert len(result.recovered) == 1
    assert session.forgotten == 0


def test_a_method_that_fails_again_and_again_is_given_up(walked):
    hang = failure("hang", "rank 1 did not answer 'replay' within 60 s; the process group was killed")
    result = walked(FakeSession(failing=[hang, hang]))
    assert [m.status for m in result.by("nccl-windows")] == ["timeout"] * 4
    assert {m.status for m in result.by("symm-mem-one-shot")} == {"ok"}
    assert any("did not answer" in note for note in result.notes)


def test_a_failed_opening_restarts_the_ranks(walked):
    session = FakeSession(
        opening={"symm-mem-one-shot": failure("other", "RuntimeError: rendezvous failed", alive=True)}
    )
    result = walked(session)
    assert {m.status for m in result.by("symm-mem-one-shot")} == {"error"}
    assert session.forgotten == 1
    assert {m.status for m in result.by("symm-mem-two-shot")} == {"ok"}


def test_ranks_that_do_not_start_any_more_do_not_end_the_scan(walked):
    problem = MachineError("the 2 ranks do not start", "GPU 1 fell off the bus", "see the driver's log")
    result = walked(FakeSession(opening=dict.fromkeys(NAMES, problem)))
    assert {m.status for m in result.records} == {"error"}
    assert "the 2 ranks do not start" in result.records[0].error.message


def test_every_case_is_checked_with_data_of_its_own(walked):
    session = FakeSession()
    walked(session)
    assert len(session.seeds) == len(set(session.seeds)) == len(NAMES) * 4 * 2


def test_what_the_run_holds_is_not_measured_again(walked):
    done = [case.id for case in beside_cases(make()) if case.method != "symm-mem-two-shot"]
    session = FakeSession()
    result = walked(session, done=done)
    assert {m.method for m in result.records} == {"symm-mem-two-shot"}
    assert [name for name, _ in session.opened] == ["symm-mem-two-shot"]


def test_it_stops_with_the_scan(walked):
    result = walked(FakeSession(), stop_after=3)
    assert len(result.records) == 3
    assert result.notes == ["beside NCCL: torch symmetric memory, one-shot is left out, the scan ended before"]


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ({"NCCL_P2P_DISABLE": "1"}, "the base switches peer access off (NCCL_P2P_DISABLE=1)"),
        ({"NCCL_P2P_LEVEL": "loc"}, "the base switches peer access off (NCCL_P2P_LEVEL=loc)"),
        ({"NCCL_P2P_DISABLE": "0", "NCCL_P2P_LEVEL": "SYS"}, ""),
    ],
)
def test_a_base_without_peer_access_stands_for_a_machine_without_it(walked, env, reason):
    assert peer_access_off(env) == reason
    session = FakeSession()
    result = walked(session, plan=make(base_extra=env))
    assert bool(session.opened) == (reason == "")
    assert {m.status for m in result.records} == ({"unsupported"} if reason else {"ok"})
    assert {m.error.message for m in result.records if m.error} == ({reason} if reason else set())
