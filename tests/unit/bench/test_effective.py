"""What is credited: in force or not, and which settings amount to the same kernel launch."""

from pathlib import Path

import pytest

from nccltune.bench.effective import Resolution, _allowed, effective_key, resolve
from nccltune.knobs import PROTOS
from nccltune.parse.nccl_log import parse_nccl_log
from nccltune.schemas.measurement import Choice, Rejected

DATA = Path(__file__).parents[2] / "data"
LL_RING = Choice(algo="Ring", proto="LL", num_channels=3, num_threads=512, transports={"P2P": 24})


@pytest.mark.parametrize(
    ("requested", "got", "expected"),
    [
        ("Ring", "Ring", True),
        ("ring", "Ring", True),
        ("Tree", "Ring", False),
        ("^LL128", "LL128", False),
        ("^LL128", "LL", True),
        ("Ring,Tree", "Tree", True),
        ("allreduce:tree", "Ring", False),
        ("broadcast:tree", "Ring", True),
        ("^LL128;allreduce:LL128", "LL128", True),
        (None, "Ring", True),
    ],
)
def test_allowed_follows_nccls_list_grammar(requested, got, expected):
    variable = "NCCL_PROTO" if got in PROTOS else "NCCL_ALGO"
    assert _allowed(variable, requested, got) is expected


def test_a_buffer_size_is_invisible_except_to_its_protocol():
    with_buffer = {"NCCL_BUFFSIZE": "16777216"}
    assert effective_key(with_buffer, LL_RING, 14336, "in-forward") == effective_key({}, LL_RING, 14336, "in-forward")
    simple = LL_RING.model_copy(update={"proto": "Simple"})
    assert effective_key(with_buffer, simple, 14336, "in-forward") != effective_key({}, simple, 14336, "in-forward")


def test_channels_and_threads_count_by_what_was_launched_not_by_what_was_asked():
    asked = {"NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "32", "NCCL_NTHREADS": "512"}
    assert effective_key(asked, LL_RING, 14336, "in-forward") == effective_key({}, LL_RING, 14336, "in-forward")
    fewer = LL_RING.model_copy(update={"num_channels": 1})
    assert effective_key(asked, fewer, 14336, "in-forward") != effective_key({}, LL_RING, 14336, "in-forward")


def test_a_variable_that_is_not_understood_is_never_shared():
    assert effective_key({"NCCL_CGA_CLUSTER_SIZE": "1"}, LL_RING, 1, "eager") != effective_key({}, LL_RING, 1, "eager")


def test_an_unknown_choice_has_no_key():
    assert effective_key({}, None, 1, "eager") is None
    assert effective_key({}, Choice(algo="Ring"), 1, "eager") is None


def test_rejected_unread_or_overruled_settings_are_not_in_force():
    env = {"NCCL_NTHREADS": "500"}
    rejected = Resolution(
        rejected=[Rejected(variable="NCCL_NTHREADS", requested="500", message="must be a multiple of 32")]
    )
    assert rejected.in_force(14336, env)[0] is False
    assert Resolution(not_read=["NCCL_FOO"]).in_force(14336, {"NCCL_FOO": "1"})[0] is False
    overruled = Resolution(choices={14336: LL_RING})
    assert overruled.in_force(14336, {"NCCL_ALGO": "Tree"}) == (False, "NCCL_ALGO=Tree but NCCL used Ring")
    assert overruled.in_force(14336, {"NCCL_ALGO": "Ring"}) == (True, "")
    assert Resolution(can_tell=False).in_force(14336, {"NCCL_ALGO": "Ring"})[0] is None


def test_a_setting_is_judged_by_its_own_variables():
    """What NCCL refused or never read of the base says nothing about a setting that stands on it."""
    base = {"NCCL_SHM_DISABLE": "1", "NCCL_NTHREADS": "500"}
    log = parse_nccl_log("host:1:1 [0] NCCL INFO NCCL_PROTO set by environment to LL\n")
    resolution = resolve({**base, "NCCL_PROTO": "LL"}, log, log.settings_in_force, [])
    assert resolution.in_force(14336, {"NCCL_PROTO": "LL"}) == (True, "")
    assert resolution.of({"NCCL_PROTO": "LL"}) == []
    assert resolution.faults(base) == [
        "NCCL_NTHREADS=500: not a multiple of 32: NCCL uses its maximum",
        "NCCL never read NCCL_SHM_DISABLE",
    ]
    assert resolution.in_force(14336, {"NCCL_PROTO": "LL", "NCCL_SHM_DISABLE": "1"})[0] is False


def test_a_real_log_and_the_graph_node_join_into_the_choice():
    log = parse_nccl_log((DATA / "nccl-log" / "nccl-debug-ll.txt").read_text())
    node = {"name": "_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL24", "num_blocks": 1, "num_threads": 512}
    answers = [{"size_bytes": 14336, "nodes": [node], "model_us": 7.9}]
    resolution = resolve({"NCCL_PROTO": "LL"}, log, log.settings_in_force, answers)
    choice = resolution.choices[14336]
    assert (choice.proto, choice.num_channels, choice.num_threads, choice.source) == (
        "LL",
        1,
        512,
        "nccl-log+graph-node",
    )
    assert resolution.in_force(14336, {"NCCL_PROTO": "LL"}) == (True, "")
    # NCCL never echoed this one: it did not read it
    unread = resolve({"NCCL_NO_SUCH": "1"}, log, log.settings_in_force, answers)
    assert unread.in_force(14336, {"NCCL_NO_SUCH": "1"})[0] is False
