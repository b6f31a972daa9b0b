"""What an engine could use instead of NCCL, on real GPUs: right sums, captured, timed, and left without a trace."""

import numpy as np
import pytest

from nccltune.bench.sampling import StopRule, allreduces_per_replay
from nccltune.bench.session import Session, SessionOptions, UnavailableError
from nccltune.knobs import BASES
from nccltune.methods import METHODS

pytestmark = pytest.mark.multigpu

SIZES = [14336, 43008, 917504]
LARGE = 32 << 20
BY_NAME = {method.name: method for method in METHODS}
WEIGHT_BYTES = 16 << 20


@pytest.fixture(scope="module")
def session():
    from nccltune.probe import find_libnccl

    session = Session(SessionOptions("nccl", 2, "bfloat16", LARGE, 7168, find_libnccl(None).path, timeout_s=60))
    yield session
    session.cleanup()


def opened(session, name, sizes=SIZES):
    try:
        return session.open_beside(BY_NAME[name], dict(BASES["sglang"]), sizes)
    except UnavailableError as error:
        pytest.skip(f"{BY_NAME[name].label}: {error}")


def time_us(session, comm, size, timing):
    num = allreduces_per_replay(timing, None)
    samples = session.measure(comm, size, timing, num, WEIGHT_BYTES, StopRule())
    return float(np.median(samples.per_allreduce_us))


@pytest.mark.parametrize("name", BY_NAME)
def test_sums_are_right_and_every_timing_gives_a_time(session, name):
    comm = opened(session, name)
    assert comm.resolution.errors == {}
    assert comm.resolution.choices[SIZES[0]].kernel
    for size in SIZES:
        num_wrong, num_checked = session.check(comm, size, [1, 2, 3])
        assert (num_wrong, num_checked) == (0, 3 * size // 2)
        for timing in ("in-forward", "back-to-back", "eager"):
            assert 0.5 < time_us(session, comm, size, timing) < 5000
    session.close(comm)


# SGLang's own classes did not open twice in one process on 2x H200; a scan opens each once, in new ranks after a failure.
@pytest.mark.parametrize("name", [name for name in BY_NAME if not name.startswith("sglang")])
def test_a_method_opens_a_second_time(session, name):
    session.close(opened(session, name))
    comm = opened(session, name)
    assert session.check(comm, SIZES[0], [4])[0] == 0
    session.close(comm)


def test_nccl_is_as_it_was_after_them(session):
    """Methods are opened between two launches of the base: neither its sums nor its choice may move."""
    before = session.open(dict(BASES["sglang"]), {}, SIZES)
    choice = before.resolution.choices[SIZES[0]]
    session.close(before)
    session.close(opened(session, "symm-mem-one-shot"))
    after = session.open(dict(BASES["sglang"]), {}, SIZES)
    assert after.resolution.choices[SIZES[0]] == choice
    assert session.check(after, SIZES[0], [5])[0] == 0
    session.close(after)


def test_registered_windows_use_a_symmetric_kernel_where_nvlink_joins_all(session):
    from nccltune.emit.safety import ll128_by_default
    from nccltune.probe import collect_machine

    if not ll128_by_default(collect_machine()):
        pytest.skip("NCCL has symmetric kernels on NVLink only")
    comm = opened(session, "nccl-windows")
    assert "Sym" in comm.resolution.choices[SIZES[0]].kernel
    session.close(comm)


def test_sglang_leaves_what_is_too_large_to_nccl(session):
    comm = opened(session, "sglang-custom-v1", [SIZES[0], LARGE])
    assert comm.resolution.errors.keys() == {LARGE}
    assert comm.resolution.errors[LARGE].startswith("Refused: ")
    assert session.check(comm, SIZES[0], [6])[0] == 0
    session.close(comm)


def test_a_whole_scan_holds_them_beside_its_settings(tmp_path):
    from nccltune import api
    from nccltune.bench.request import ScanRequest
    from nccltune.knobs import NAMED
    from nccltune.plan import Grid
    from nccltune.registry import load_model

    request = ScanRequest(
        backend="nccl",
        num_ranks=2,
        model=load_model("kimi-k2.5"),
        tokens=[1, 4, 16],
        grid=Grid(named=(NAMED["seed"],)),
        beside=True,
    )
    result = api.scan(request, output=tmp_path / "run")
    assert result.outcome == "complete"
    assert {b.method for b in result.fit.beside} == set(BY_NAME)
    assert all(b.points or b.reason for b in result.fit.beside)
    assert {s.setting.name for s in result.fit.settings} == {"base", "seed"}
    # Nothing is left to do for a second walk.
    assert api.scan(None, resume=tmp_path / "run").notes[0].endswith("nothing is measured")
