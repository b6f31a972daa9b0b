"""The compiled plugin as NCCL calls it, in every interface version: what it changes, and above all what it leaves alone."""

import os
import re
import subprocess

import pytest
from fake_nccl_tuner import COLLECTIVES, INFO, PLUGIN_FOLDER, SHARED, WARN, Communicator, compile_c

from nccltune.tuner.plugin import SOURCES

VERSIONS = (3, 4, 5, 6)
INIT_TUNING = 0x1 | 0x40
POLICY = """nccltune-policy 1
# decode, then prefill
AllReduce,0,16384,Ring,LL,*,2,1
AllReduce,16385,1048576,Ring,Simple,8,*,*
allreduce , 0 , * , tree , ll , 2 , 2 , 1
AllGather,0,*,PAT,Simple,4,4,*
AllReduce,0,*,NVLS,Simple,16,8,*
Reduce,0,*,CollNetChain,Simple,5,*,*
"""


@pytest.fixture
def policy(tmp_path, monkeypatch):
    path = tmp_path / "policy.csv"
    path.write_text(POLICY)
    monkeypatch.setenv("NCCL_TUNER_CONFIG_FILE", str(path))
    return path


@pytest.fixture(params=VERSIONS, ids=lambda version: f"v{version}")
def opened(request, built, logger, policy):
    """Open communicators in one interface version, and close them."""
    comms = []

    def make(num_ranks=2, num_nodes=1, log=logger):
        comms.append(Communicator(built / "plugin.so", request.param, log, num_ranks, num_nodes))
        return comms[-1]

    yield make
    for comm in comms:
        comm.close()


def test_sources_compile_without_a_warning(compiler, tmp_path):
    for standard in ("gnu11", "gnu17"):
        flags = (f"-std={standard}", "-Wpedantic", "-Wshadow", "-Wconversion", *SHARED)
        compile_c(compiler, tmp_path / "strict.so", *(PLUGIN_FOLDER / name for name in SOURCES), flags=flags)


def test_only_the_four_interfaces_are_visible(built):
    text = subprocess.run(
        ["nm", "-D", "--defined-only", built / "plugin.so"], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1] for line in text.splitlines() if line}
    assert names == {f"ncclTunerPlugin_v{version}" for version in VERSIONS}


def test_first_match_wins_and_the_count_follows(opened):
    comm = opened()
    assert comm.tuner.name == b"nccltune"
    for size, expected in (
        (0, ("Ring", "LL", 3)),  # *: NCCL's own count
        (16384, ("Ring", "LL", 3)),
        (16385, ("Ring", "Simple", 8)),
        (1048576, ("Ring", "Simple", 8)),
        (1048577, ("Tree", "LL", 2)),
        (2**63, ("Tree", "LL", 2)),
    ):
        choice = comm.choose("AllReduce", size)
        assert (choice.algo, choice.proto, choice.num_channels) == expected
        assert not choice.untouched


def test_a_rule_without_a_count_does_not_write_one(opened):
    choice = opened().choose("AllReduce", 0, count=9)
    assert (choice.algo, choice.proto, choice.num_channels) == ("Ring", "LL", 9)


def test_what_no_rule_names_is_left_alone(opened):
    comm = opened()
    for collective in ("Broadcast", "ReduceScatter", "AllGather"):  # the AllGather rule is for 4 ranks
        choice = comm.choose(collective, 4096)
        assert choice.untouched
        assert (choice.algo, choice.proto) == ("Ring", "LL128")
    four = opened(num_ranks=4)
    assert four.choose("AllReduce", 16384).untouched
    assert four.choose("AllReduce", 16385).num_channels == 8
    assert opened(num_ranks=2, num_nodes=2).choose("AllReduce", 100).untouched


def test_a_pair_that_nccl_does_not_have_is_never_enabled(opened, logger):
    comm = opened()
    logger.clear()
    for _ in range(3):
        assert comm.choose("AllReduce", 100, missing=[("Ring", "LL")]).untouched
        assert comm.choose("AllReduce", 20000, nan=[("Ring", "Simple")]).untouched
    # said once for each rule, by its line
    assert [(level, subsys) for level, subsys, _ in logger.lines()] == [(INFO, INIT_TUNING)] * 2
    assert [re.search(r"line \d+: no \w+ \w+ for \w+", text)[0] for _, _, text in logger.lines()] == [
        "line 3: no Ring LL for AllReduce",
        "line 4: no Ring Simple for AllReduce",
    ]


def test_tables_smaller_than_ours_are_not_overrun(opened):
    assert opened(num_ranks=4).choose("AllGather", 100).num_channels == 4
    # 2.22 has six algorithms, so no PAT
    assert opened(num_ranks=4).choose("AllGather", 100, num_algos=6).untouched
    assert opened().choose("AllReduce", 20000, num_protos=2).untouched


def test_a_count_that_nccl_would_not_bound_stays_its_own(opened):
    choice = opened().choose("Reduce", 100)
    assert (choice.algo, choice.num_channels, choice.untouched) == ("CollNetChain", 3, False)
    assert opened(num_ranks=8).choose("AllReduce", 2**24).num_channels == 16
    several = opened(num_ranks=8, num_nodes=2).choose("AllReduce", 2**24)
    assert (several.algo, several.num_channels) == ("NVLS", 3)


def test_one_line_says_what_was_read(opened, logger, policy):
    opened(num_ranks=8)
    [(_, env_subsys, env), (level, subsys, text)] = logger.lines()
    # in NCCL's own words, so that a log parser sees the variable in force
    assert (env, env_subsys) == (f"NCCL_TUNER_CONFIG_FILE set by environment to {policy}", 0x80)
    assert (level, subsys) == (INFO, INIT_TUNING)
    # 8 ranks: lines 4, 7 and 8
    assert text.startswith("nccltune tuner: 6 rules, 3 for 8 ranks on 1 nodes, checksum ")
    assert text.endswith(f"policy {policy}")


def test_each_communicator_reads_the_file_anew(opened, policy):
    before = opened()
    policy.write_text("nccltune-policy 1\nAllReduce,0,*,Tree,Simple,1,*,*\n")
    assert opened().choose("AllReduce", 100).algo == "Tree"
    assert before.choose("AllReduce", 100).proto == "LL"


def broken(path, kind):
    """Make the policy unusable in one way; return what the warning says."""
    if kind == "missing":
        path.unlink()
        return "No such file or directory"
    if kind == "folder":
        path.unlink()
        path.mkdir()
        return "not a regular file"
    if kind == "pipe":
        path.unlink()
        os.mkfifo(path)
        return "not a regular file"
    texts = {
        "empty": (b"", "the file is empty"),
        "word": (POLICY.replace("PAT", "PAD").encode(), "line 6: unknown algorithm 'PAD'"),
        "cut": (POLICY.encode()[:-3], "line 8: 7 fields instead of 8"),
        "binary": (os.urandom(4096), "line 1: "),
        "other version": (b"nccltune-policy 2\n", "line 1: is not 'nccltune-policy 1'"),
        "too large": (b"nccltune-policy 1\n" + b"#\n" * 200_000, "larger than 262144 bytes"),
    }
    content, message = texts[kind]
    path.write_bytes(content)
    return message


@pytest.mark.parametrize(
    "kind", ["missing", "folder", "pipe", "empty", "word", "cut", "binary", "other version", "too large"]
)
def test_an_unusable_policy_is_one_warning_and_nothing_else(opened, logger, policy, kind):
    message = broken(policy, kind)
    comm = opened()
    [(_, subsys, text)] = logger.lines(WARN)
    # NCCL drops a line whose subsystem is not asked for; warnings are for all of them
    assert subsys == 2**64 - 1
    assert str(policy) in text
    assert message in text
    assert all(comm.choose(collective, size).untouched for collective in COLLECTIVES for size in (0, 100, 20000, 2**40))
    assert len(logger.lines(WARN)) == 1
    assert not any("rules" in text for _, _, text in logger.lines())


@pytest.mark.parametrize("value", [None, ""])
def test_no_policy_named_is_one_warning(opened, logger, monkeypatch, value):
    if value is None:
        monkeypatch.delenv("NCCL_TUNER_CONFIG_FILE")
    else:
        monkeypatch.setenv("NCCL_TUNER_CONFIG_FILE", value)
    comm = opened()
    [(level, _, text)] = logger.lines()
    assert level == WARN
    assert "NCCL_TUNER_CONFIG_FILE is not set" in text
    assert comm.choose("AllReduce", 100).untouched


def test_without_a_logger_nothing_is_said_and_nothing_breaks(opened, policy):
    assert opened(log=None).choose("AllReduce", 100).proto == "LL"
    broken(policy, "word")
    assert opened(log=None).choose("AllReduce", 100).untouched


def test_odd_calls_do_no_harm(opened):
    comm = opened()
    registered = (0,) if comm.version > 3 else ()
    for collective in (-1, 5, 15, 10**6):
        assert comm.tuner.getCollInfo(comm.context, collective, 100, 1, None, 7, 3, *registered, None) == 0
    assert comm.tuner.getCollInfo(comm.context, 4, 100, 1, None, 7, 3, *registered, None) == 0
    if comm.version == 6:
        assert comm.tuner.getChunkSize is None
