"""A session over ranks that answer from a function: what it opens it can close, whatever fails."""

import pytest
from fake_group import FakeGroup, refuse

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
