"""A session over ranks that answer from a function: what it opens it can close, whatever fails."""

import pytest
from fake_group import FakeGroup, log, refuse

from nccltune.bench.group import RankFailure
from nccltune.bench.session import Session, SessionOptions


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
