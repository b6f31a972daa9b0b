"""What a communicator picks up, seen in NCCL's own log, in the launch, and in the time (docs/knobs.md)."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from nccltune.bench.group import RankFailure, classify
from nccltune.bench.sampling import StopRule, allreduces_per_replay
from nccltune.bench.session import Session, SessionOptions
from nccltune.knobs import BASES, SEED, library_part

pytestmark = pytest.mark.multigpu

SIZES = [14336, 917504, 8388608]
LARGE = 8388608


@pytest.fixture(scope="module")
def session():
    from nccltune.probe import find_libnccl

    options = SessionOptions("nccl", 2, "bfloat16", LARGE, 7168, find_libnccl(None).path, timeout_s=30)
    session = Session(options)
    yield session
    session.cleanup()


def opened(session, env, library_env=None):
    comm = session.open({**BASES["sglang"], **env}, library_part(env) if library_env is None else library_env, SIZES)
    comm.env = env
    return comm


def time_us(session, env, size, library_env=None):
    comm = opened(session, env, library_env)
    assert session.check(comm, size, [1, 2])[0] == 0
    num = allreduces_per_replay("back-to-back", comm.resolution.model_us.get(size))
    samples = session.measure(comm, size, "back-to-back", num, 0, StopRule())
    session.close(comm)
    return float(np.median(samples.per_allreduce_us)), comm.resolution


def test_the_log_and_the_graph_agree_on_the_choice(session):
    _, resolution = time_us(session, {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}, 14336)
    choice = resolution.choices[14336]
    assert (choice.algo, choice.proto, choice.source) == ("Ring", "LL", "nccl-log+graph-node")
    assert resolution.choices[917504].num_channels > choice.num_channels >= 1
    assert resolution.model_us[14336] == pytest.approx(7.9, rel=0.5)


def test_a_fixed_channel_count_takes_effect_in_a_private_copy(session):
    one = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "1"}
    slow, resolution = time_us(session, one, LARGE)
    fast, _ = time_us(session, {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}, LARGE)
    assert resolution.choices[LARGE].num_channels == 1
    assert resolution.in_force(LARGE, one) == (True, "")
    assert slow > 5 * fast


def test_the_same_copy_ignores_it_and_nothing_is_credited(session):
    opened_first, _ = time_us(session, {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}, LARGE)
    one = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "1"}
    ignored, resolution = time_us(session, one, LARGE, library_env={})
    assert ignored == pytest.approx(opened_first, rel=0.1)
    assert resolution.choices[LARGE].num_channels > 1
    assert resolution.in_force(LARGE, one)[0] is False


@pytest.mark.parametrize(("variable", "value"), [("NCCL_BUFFSIZE", "65536"), ("NCCL_NTHREADS", "64")])
def test_buffer_and_threads_take_effect_in_a_private_copy(session, variable, value):
    simple = {"NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring"}
    slow, resolution = time_us(session, {**simple, variable: value}, LARGE)
    fast, _ = time_us(session, simple, LARGE)
    assert resolution.in_force(LARGE, {**simple, variable: value}) == (True, "")
    assert slow > 1.15 * fast


def test_the_seed_set_is_in_force(session):
    comm = opened(session, SEED)
    assert comm.resolution.in_force(14336, SEED) == (True, "")
    assert comm.resolution.choices[LARGE].num_channels <= 16
    session.close(comm)


def test_a_rejected_value_is_not_credited(session):
    comm = opened(session, {"NCCL_NTHREADS": "500"})
    in_force, reason = comm.resolution.in_force(14336, {"NCCL_NTHREADS": "500"})
    assert in_force is False
    assert "multiple of 32" in reason
    session.close(comm)


def test_an_algorithm_the_machine_lacks_fails_per_size_and_the_ranks_live_on(session):
    comm = opened(session, {"NCCL_ALGO": "NVLS"})
    assert classify(comm.resolution.errors[14336], "other") == "no_algorithm"
    session.close(comm)
    assert time_us(session, {}, 14336)[0] > 1


def test_a_bad_protocol_fails_at_open_and_the_ranks_live_on(session):
    with pytest.raises(RankFailure) as failure:
        opened(session, {"NCCL_PROTO": "LL9"})
    assert failure.value.group_alive
    assert time_us(session, {}, 14336)[0] > 1


def test_other_collectives_work_under_a_prefixed_list_and_fail_under_a_bare_tree(session):
    good = opened(session, {"NCCL_ALGO": "allreduce:tree"})
    assert session.others(good, 65536) == {"all_gather": "", "reduce_scatter": "", "broadcast": ""}
    session.close(good)
    bad = opened(session, {"NCCL_ALGO": "Tree"})
    faults = session.others(bad, 65536)
    assert faults["all_gather"]
    assert faults["broadcast"]
    session.close(bad)


def test_a_stopped_rank_is_a_hang_and_the_next_case_starts_anew(session):
    comm = opened(session, {})
    pids = session.group.pids
    object.__setattr__(session.options, "timeout_s", 3.0)
    try:
        os.kill(pids[1], signal.SIGSTOP)
        with pytest.raises(RankFailure) as failure:
            session.check(comm, 14336, [1])
    finally:
        object.__setattr__(session.options, "timeout_s", 30.0)
    assert failure.value.kind == "hang"
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    session.forget()
    assert time_us(session, {}, 14336)[0] > 1
