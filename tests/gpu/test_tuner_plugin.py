"""The tuner plugin inside NCCL on two GPUs: the policy per size, nothing else touched, and its promise in microseconds."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from nccltune.bench.sampling import StopRule, allreduces_per_replay
from nccltune.bench.session import Session, SessionOptions
from nccltune.knobs import BASES
from nccltune.parse.nccl_log import choices_after
from nccltune.tuner import PolicyRule, build_plugin, write_policy

pytestmark = [
    pytest.mark.multigpu,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine"),
]

SMALL, MIDDLE, DECODE, LARGE, PREFILL = 14336, 43008, 229376, 917504, 8388608
SIZES = [SMALL, MIDDLE, DECODE, LARGE, PREFILL]
# None of these is what NCCL 2.28.9 chooses by itself between two H200 (Ring LL on 1, 5 and 23 channels).
RULES = [
    PolicyRule("AllReduce", SMALL, SMALL, "Tree", "LL", None, 2, 1),
    PolicyRule("AllReduce", MIDDLE, MIDDLE, "Ring", "LL", 2, None, None),
    PolicyRule("AllReduce", LARGE, LARGE, "Ring", "Simple", 8, 2, 1),
    # a pair that one node never has, and a communicator of another size
    PolicyRule("AllReduce", DECODE, DECODE, "PAT", "Simple", 4, 2, 1),
    PolicyRule("AllReduce", 0, 2**63, "Tree", "Simple", 1, 8, None),
]


@pytest.fixture(scope="module")
def session():
    from nccltune.probe import find_libnccl

    session = Session(SessionOptions("nccl", 2, "bfloat16", PREFILL, 7168, find_libnccl(None).path, timeout_s=60))
    yield session
    session.cleanup()


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    return build_plugin(tmp_path_factory.mktemp("tuner"))


class Opened:
    """A communicator with what rank 0 logged since it began to open."""

    def __init__(self, session, env, library_env):
        self._session = session
        before = {path: path.stat().st_size for path in session.workdir.glob("nccl-*-r0.log")}
        self.comm = session.open({**BASES["sglang"], **env}, library_env, SIZES)
        self._log = Path(self.comm.library.log % 0)
        self._start = before.get(self._log, 0)
        self.resolution = self.comm.resolution

    def log(self):
        return self._log.read_text(errors="replace")[self._start :]

    def triples(self):
        return {size: (c.algo, c.proto, c.num_channels) for size, c in self.resolution.choices.items()}

    def other_choices(self):
        """What NCCL logs for the other collectives, which must also give right data."""
        assert self._session.others(self.comm, 65536) == {"all_gather": "", "reduce_scatter": "", "broadcast": ""}
        return [choice for choice in choices_after(self.log()) if choice.collective != "AllReduce"]

    def time_us(self, size):
        num = allreduces_per_replay("back-to-back", self.resolution.model_us.get(size))
        samples = self._session.measure(self.comm, size, "back-to-back", num, 0, StopRule())
        return float(np.median(samples.per_allreduce_us))

    def close(self):
        self._session.close(self.comm)


@pytest.fixture
def opened(session, plugin, tmp_path):
    """Open a communicator, with the plugin where a policy is given (a text, or None for a file that is not there)."""
    comms = []

    def make(env=None, policy="", *, use_plugin=True):
        env = dict(env or {})
        library_env = dict(env)
        if use_plugin:
            path = tmp_path / f"policy-{len(comms)}.csv"
            if policy is not None:
                path.write_text(policy)
            library_env["NCCL_TUNER_PLUGIN"] = str(plugin)
            env |= {"NCCL_TUNER_PLUGIN": str(plugin), "NCCL_TUNER_CONFIG_FILE": str(path)}
        comms.append(Opened(session, env, library_env))
        return comms[-1]

    yield make
    for comm in comms:
        comm.close()


def test_the_log_shows_the_policy_per_size_and_sums_are_right(session, opened):
    own = opened(use_plugin=False).triples()
    comm = opened(policy=write_policy(RULES))
    found = comm.triples()
    assert found[SMALL][:2] == ("Tree", "LL")
    assert found[MIDDLE] == ("Ring", "LL", 2)
    assert found[LARGE] == ("Ring", "Simple", 8)
    assert all(found[size] != own[size] for size in (SMALL, MIDDLE, LARGE))
    # no rule, or none that NCCL can follow: its own choice, channel count included
    assert {size: found[size] for size in (DECODE, PREFILL)} == {size: own[size] for size in (DECODE, PREFILL)}
    for size in SIZES:
        assert session.check(comm.comm, size, [1, 2, 3])[0] == 0
    log = comm.log()
    assert log.count("NCCL INFO nccltune tuner: 5 rules, 4 for 2 ranks on 1 nodes") == 1
    assert log.count("no PAT Simple for AllReduce here: NCCL decides") == 1
    assert "NCCL WARN nccltune" not in log


def test_it_is_in_force_as_a_scan_sees_it(opened):
    comm = opened(policy=write_policy(RULES))
    env = {name: value for name, value in comm.comm.env.items() if name.startswith("NCCL_TUNER_")}
    assert len(env) == 2
    assert comm.resolution.in_force(SMALL, env) == (True, "")


def test_other_collectives_are_untouched(opened):
    own = opened(use_plugin=False).other_choices()
    assert {choice.collective for choice in own} == {"AllGather", "ReduceScatter", "Broadcast"}
    assert opened(policy=write_policy(RULES)).other_choices() == own


@pytest.mark.parametrize(
    "policy",
    [None, "", write_policy(RULES).replace("Tree", "Trie"), "nccltune-policy 9\n", "\x7fELF" * 50],
    ids=["missing", "empty", "unknown word", "other version", "binary"],
)
def test_an_unusable_policy_is_nccls_own_behaviour_and_one_warning(session, opened, policy):
    own = opened(use_plugin=False).triples()
    comm = opened(policy=policy)
    assert comm.triples() == own
    assert session.check(comm.comm, SMALL, [1, 2])[0] == 0
    assert comm.log().count("NCCL WARN nccltune tuner: ") == 1


def test_a_new_policy_needs_a_new_communicator_only(opened):
    first = opened(policy=write_policy(RULES))
    second = opened(policy=write_policy([PolicyRule("AllReduce", 0, 2**63, "Ring", "Simple", 4)]))
    assert first.triples()[SMALL][:2] == ("Tree", "LL")
    assert {triple[:2] for triple in second.triples().values()} == {("Ring", "Simple")}


def test_decode_costs_what_the_best_env_costs_and_prefill_what_the_default_costs(opened):
    """Through host memory, where no single environment is best at every size: more channels help decode and LL hurts prefill."""
    path = {"NCCL_P2P_DISABLE": "1"}
    tuned = {
        **path,
        "NCCL_ALGO": "allreduce:ring",
        "NCCL_PROTO": "allreduce:LL",
        "NCCL_MIN_NCHANNELS": "16",
        "NCCL_MAX_NCHANNELS": "16",
    }
    default, best = opened(path, use_plugin=False), opened(tuned, use_plugin=False)
    rules = [
        PolicyRule("AllReduce", 0, 2 * DECODE, "Ring", "LL", best.triples()[DECODE][2], 2, 1),
        # more channels change NCCL's own choice too, so it is written down as it was
        PolicyRule("AllReduce", 2 * DECODE + 1, 2**63, *default.triples()[PREFILL], 2, 1),
    ]
    ours = opened({**path, "NCCL_MIN_NCHANNELS": "16"}, write_policy(rules))
    assert ours.triples()[DECODE] == best.triples()[DECODE]
    assert ours.triples()[PREFILL] == default.triples()[PREFILL]
    decode, prefill = ours.time_us(DECODE), ours.time_us(PREFILL)
    assert decode == pytest.approx(best.time_us(DECODE), rel=0.08)
    assert decode < 0.9 * default.time_us(DECODE)
    assert prefill == pytest.approx(default.time_us(PREFILL), rel=0.08)
    assert prefill < 0.8 * best.time_us(PREFILL)
