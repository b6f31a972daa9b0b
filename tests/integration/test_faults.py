"""What a rank does wrong becomes a record, and the walk goes on: hang, crash, exit, errors, wrong sums, by real processes."""

import pytest
from real_scans import gloo_scan

from nccltune.bench import group, scan
from nccltune.errors import MachineError

pytestmark = pytest.mark.slow

KIB = 1024
# size in KiB -> fault, status, error kind, words of the message. Each fault happens at its size alone.
FAULTS = {
    2: ("crash:rank=1", "error", "crash", "rank 1 was ended by SIGABRT"),
    8: ("exception", "error", "cuda", "unhandled cuda error"),
    16: ("oom:rank=1", "error", "out_of_memory", "out of memory"),
    32: ("shm", "error", "shm_space", "/dev/shm"),
    64: ("hang:rank=1", "timeout", "hang", "did not answer 'begin' within 3 s; the process group was killed"),
    128: ("wrong:rank=1", "wrong_results", None, ""),
}


def test_every_fault_costs_its_own_case_only(tmp_path, monkeypatch):
    # As if each size were a setting: two failures of one would end it.
    monkeypatch.setattr(scan, "MAX_FAILURES_PER_SETTING", 100)
    monkeypatch.setattr(group, "GRACE_S", 0.3)
    faults = ";".join(f"{fault}{',' if ':' in fault else ':'}size={size * KIB}" for size, (fault, *_) in FAULTS.items())
    monkeypatch.setenv("NCCLTUNE_FAULT", faults)
    result = gloo_scan(tmp_path / "run", [size * KIB for size in (1, *FAULTS, 256)], case_timeout_s=3.0)
    cases = {m.size_bytes // KIB: m for m in result.run.measurements() if not m.repeat}
    for size, (_, status, kind, words) in FAULTS.items():
        case = cases[size]
        assert (case.status, case.samples_us) == (status, [])
        assert (case.error.kind if case.error else None) == kind
        assert words in (case.error.message if case.error else "")
    assert cases[128].num_wrong > 0
    assert [cases[size].status for size in (1, 256)] == ["ok", "ok"]
    assert len(cases[256].samples_us) == 5
    assert result.outcome == "complete"
    # Wrong sums disqualify the setting, and the scan does not pass its gate.
    assert result.fit is None
    assert "wrong sums under base" in result.quality_problem


def test_the_base_is_opened_again_and_a_fault_that_happens_once_costs_one_case(tmp_path, monkeypatch):
    sizes = [KIB, 2 * KIB, 4 * KIB]
    monkeypatch.setattr(scan, "MAX_FAILURES_PER_SETTING", 3)
    opening, crash = tmp_path / "opening", tmp_path / "crash"
    monkeypatch.setenv("NCCLTUNE_FAULT", f"exit:rank=1,op=open,once={opening};crash:rank=0,once={crash}")
    result = gloo_scan(tmp_path / "run", sizes)
    assert opening.exists()
    assert crash.exists()
    assert [m.status for m in result.run.measurements() if not m.repeat] == ["error", "ok", "ok"]
    assert "the base setting has 1 case(s) without a time (error at 1024 B)" in result.quality_problem


def test_ranks_that_do_not_start_are_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCLTUNE_FAULT", "exit:rank=1,op=start")
    with pytest.raises(MachineError) as caught:
        gloo_scan(tmp_path / "run", [KIB])
    assert caught.value.lines()[:2] == ["the 2 ranks do not start", "why: rank 1 ended with exit code 7"]
