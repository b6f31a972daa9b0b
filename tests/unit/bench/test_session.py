"""A session over ranks that answer from a function: what it opens it can close, whatever fails."""

import pytest
from fake_group import FakeGroup, log, refuse

from nccltune.bench.group import RankFailure
from nccltune.bench.session import Session, SessionOptions, UnavailableError
from nccltune.methods import METHODS


@pytest.fixture
def start(tmp_path):
    """A session whose ranks are a FakeGroup."""
    (tmp_path / "libnccl.so.2").write_bytes(b"nccl")
    sessions = []

    def make(on=lambda op, fields: None, **options):
        options = {"backend": "nccl", "libnccl": str(tmp_path / "libnccl.so.2"), **options}
        session = Session(SessionOptions(num_ranks=2, dtype="bfloat16", max_bytes=1024, hidden_size=8, **options))
        group = session._group = FakeGroup(on)
        sessions.append(session)
        return session, group

    yield make
    for session in sessions:
        session.cleanup()


def test_a_clamped_channel_count_is_found_behind_the_first_communicator(start):
    """The first communicator of a copy holds the bound, the second one, of another setting, does not."""
    echo = "NCCL_MAX_NCHANNELS set by environment to 4."
    logs = iter([log(echo, "4 coll channels, 0 collnet channels"), log("8 coll channels, 0 collnet channels")])
    session, _ = start(lambda op, fields: next(logs) if op == "resolve" else None)
    env = {"NCCL_MAX_NCHANNELS": "4"}
    assert session.open(env, env, [1024]).resolution.in_force(1024, env) == (True, "")
    in_force, reason = session.open(env, env, [1024]).resolution.in_force(1024, env)
    assert (in_force, reason) == (False, "NCCL_MAX_NCHANNELS=4: 8 coll channels, though NCCL_MAX_NCHANNELS asked for 4")


def test_ranks_that_cannot_unload_a_copy_are_ended(start):
    def on(op, fields):
        if op == "unload":
            raise refuse("dlclose failed")

    session, group = start(on, max_libraries=1)
    session.close(session.open({}, {"NCCL_BUFFSIZE": "1"}, []))
    with pytest.raises(RankFailure, match="dlclose failed"):
        session.open({}, {"NCCL_BUFFSIZE": "2"}, [])
    assert group.killed
    assert not session.is_running


@pytest.mark.parametrize("failing", ["open", "resolve"])
def test_what_was_opened_on_some_ranks_is_left_on_all_when_opening_fails(failing, start):
    left = [failing]

    def on(op, fields):
        if op in left:
            left.remove(op)
            raise refuse()

    session, group = start(on, max_libraries=1)
    with pytest.raises(RankFailure):
        session.open({}, {"NCCL_BUFFSIZE": "1"}, [1024])
    [(_, opened)], [(_, closed)] = group.ops("open"), group.ops("close")
    assert (closed["comm"], closed["abort"]) == (opened["comm"], True)
    assert session.is_running, "the ranks all answered"
    # Nothing holds the copy: there is room for the next.
    session.open({}, {"NCCL_BUFFSIZE": "2"}, [], quiet=True)
    assert len(group.ops("unload")) == 1


def test_ranks_that_cannot_leave_what_failed_to_open_are_ended(start):
    def on(op, fields):
        if op in ("resolve", "close"):
            raise refuse(f"{op} failed")

    session, group = start(on)
    with pytest.raises(RankFailure, match="resolve failed"):
        session.open({}, {}, [1024])
    assert (group.killed, session.is_running) == (True, False)


def test_a_method_that_one_rank_refuses_is_left_by_the_others(start):
    reasons = {"probe_beside": {"reason": ""}, "open_beside": {"reason": "not on these GPUs"}}
    session, group = start(lambda op, fields: reasons.get(op))
    with pytest.raises(UnavailableError):
        session.open_beside(METHODS[0], {}, [1024])
    assert len(group.ops("close")) == 1
