"""Rank processes with small stand-ins for the worker: start, answer, die, hang; nothing is left and nothing is mixed up."""

import os
import sys

import pytest

from nccltune.bench import group as group_module
from nccltune.bench.group import RankFailure, RankGroup
from nccltune.launch import local

# Answers every command with its own op; the op may be Python text to run first.
WORKER = """
import json, os, sys
rank, fd = int(sys.argv[1]), int(sys.argv[2])
with os.fdopen(fd, "w") as replies:
    for line in sys.stdin:
        message = json.loads(line)
        if message["op"] == "exit":
            break
        answer = {"op": message["op"]}
        exec(message.get("do", ""))
        replies.write(json.dumps(answer) + "\\n")
        replies.flush()
"""


@pytest.fixture
def group(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "command", lambda rank, fd: [sys.executable, "-S", "-c", WORKER, str(rank), str(fd)])
    monkeypatch.setattr(group_module, "GRACE_S", 0.3)
    made = RankGroup(2, tmp_path)
    yield made
    made.kill()
    assert not [pid for pid in made.pids if is_running(pid)]


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_answers_come_in_rank_order_and_to_the_ranks_asked(group):
    assert group.call("a", 10, do="answer['rank'] = rank", per_rank=[{}, {}]) == [
        {"op": "a", "rank": 0},
        {"op": "a", "rank": 1},
    ]
    assert group.call("b", 10, do="answer['rank'] = rank", ranks=[1]) == [{"op": "b", "rank": 1}]
    pids = group.pids
    group.close()
    assert not [pid for pid in pids if is_running(pid)]


@pytest.mark.parametrize(
    ("do", "words"),
    [
        ("if rank == 1: os._exit(7)", "rank 1 ended with exit code 7"),
        (
            "if rank == 1: os.kill(os.getpid(), 9)",
            "rank 1 was ended by SIGKILL (the kernel does that when memory runs out)",
        ),
        ("if rank == 1: os.kill(os.getpid(), 7)", "rank 1 was ended by SIGBUS (usually /dev/shm is full"),
    ],
)
def test_a_rank_that_dies_is_named_with_how(group, do, words):
    with pytest.raises(RankFailure) as caught:
        group.call("x", 10, do=do)
    failure = caught.value
    assert failure.message.startswith(words)
    assert (failure.kind, failure.rank, failure.group_alive) == ("crash", 1, False)
    group.close()  # closing a dead group says nothing


def test_a_cause_printed_by_the_dead_rank_decides_the_kind_but_old_output_does_not(group):
    group.call("old", 10, do="print('CUDA error: out of memory', file=sys.stderr, flush=True)")
    with pytest.raises(RankFailure) as caught:
        group.call("x", 10, do="if rank == 0: os._exit(1)")
    assert caught.value.kind == "crash"


def test_the_dying_words_of_a_rank_are_heard(group):
    do = "if rank == 0: print('posix_fallocate failed: No space left on device /dev/shm', file=sys.stderr, flush=True); os._exit(1)"
    with pytest.raises(RankFailure) as caught:
        group.call("x", 10, do=do)
    assert caught.value.kind == "shm_space"


def test_a_silent_rank_is_a_hang_and_the_group_is_killed(group):
    with pytest.raises(RankFailure) as caught:
        group.call("x", 0.5, do="import time; time.sleep(60 * rank)")
    assert (caught.value.kind, caught.value.group_alive) == ("hang", False)
    assert caught.value.message == "rank 1 did not answer 'x' within 0.5 s; the process group was killed"


def test_an_error_of_one_rank_is_the_cause_although_the_other_waits_for_it(group):
    do = "import time\nif rank == 0: time.sleep(60)\nanswer['error'] = 'ncclAllReduce: unhandled cuda error'"
    with pytest.raises(RankFailure) as caught:
        group.call("x", 30, do=do)
    assert (caught.value.kind, caught.value.rank, caught.value.group_alive) == ("cuda", 1, False)


def test_an_error_that_every_rank_answers_leaves_the_group_alive_unless_its_context_is_broken(group):
    with pytest.raises(RankFailure) as caught:
        group.call("x", 10, do="answer['error'] = 'no algorithm/protocol available'")
    assert (caught.value.kind, caught.value.group_alive) == ("no_algorithm", True)
    assert len(group.call("again", 10)) == 2
    with pytest.raises(RankFailure) as caught:
        group.call("x", 10, do="answer['error'] = 'CUDA error: an illegal memory access was encountered'")
    assert (caught.value.kind, caught.value.group_alive) == ("cuda", False)


def test_a_rank_that_cannot_be_started_leaves_none_behind(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(
        local,
        "command",
        lambda rank, fd: (
            [sys.executable, "-S", "-c", WORKER, "0", str(fd)] if rank == 0 else [str(tmp_path / "missing")]
        ),
    )
    kill = RankGroup.kill
    monkeypatch.setattr(RankGroup, "kill", lambda self: (made.extend(self.pids), kill(self)))
    with pytest.raises(RankFailure, match="a rank cannot be started: No such file or directory"):
        RankGroup(2, tmp_path)
    assert len(made) == 1
    assert not is_running(made[0])
