"""The nccl-tests back end against a stand-in that prints what the real program printed on 2x H200."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from nccltune.bench.nccl_tests import (
    NcclTestsOptions,
    find_all_reduce_perf,
    measure_setting,
    supports_json,
    to_measurement,
)
from nccltune.bench.size_runs import SizeRun, size_runs
from nccltune.errors import InputError, MachineError
from nccltune.schemas.measurement import Case
from nccltune.schemas.setting import BASE, Setting

DATA = Path(__file__).parents[2] / "data" / "nccl-tests"
FAKE = Path(__file__).parents[2] / "fakes" / "fake_all_reduce_perf.py"
LL = Setting.make({"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"})
SIZES = [14336, 114688, 917504]


def program(tmp_path: Path, behaviour: str = "ok") -> str:
    text = FAKE.read_text().replace('BEHAVIOUR = "ok"', f'BEHAVIOUR = "{behaviour}"').replace("DATA_FOLDER", str(DATA))
    path = tmp_path / "all_reduce_perf"
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return str(path)


def measure(
    tmp_path: Path, behaviour: str = "ok", setting: Setting = LL, sizes: list[int] | None = None, **how: object
):
    base = {"NCCL_NVLS_ENABLE": "0"}
    deadline = how.pop("deadline", None)
    options = NcclTestsOptions(**{"path": program(tmp_path, behaviour), "launches": 2, **how})
    return measure_setting(setting, base, sizes or SIZES, 2, "bfloat16", options=options, deadline=deadline)


def calls(tmp_path: Path) -> list[dict]:
    return [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]


def test_times_are_those_of_the_json_report(tmp_path):
    results = measure(tmp_path)
    assert [r.size_bytes for r in results] == SIZES
    assert results[0].in_place_us == [7.475539, 7.475539]
    assert results[0].out_of_place_us == [7.401589, 7.401589]
    assert {r.status for r in results} == {"ok"}
    # 2 calls x 2 halves x 7168 elements.
    assert (results[0].num_wrong, results[0].num_checked) == (0, 4 * 7168)


def test_one_geometric_call_covers_the_sizes(tmp_path):
    measure(tmp_path, probe=False, launches=1)
    (call,) = calls(tmp_path)
    text = " ".join(call["argv"])
    assert "-b 14336 -e 917504 -f 8 -g 2" in text
    assert "-n 50 -w 5 -c 1 -G 30" in text
    assert "-d bfloat16" in text


def test_choice_comes_from_an_untimed_probe(tmp_path):
    results = measure(tmp_path, launches=1)
    probe, timed = calls(tmp_path)
    assert probe["env"]["NCCL_DEBUG"] == "INFO"
    assert "-G" not in probe["argv"]
    assert "NCCL_DEBUG" not in timed["env"]
    choice = results[1].choice
    assert (choice.algo, choice.proto, choice.num_channels, choice.source) == ("Ring", "LL", 14, "nccl-log")
    # NCCL's model: 7.8 us + 114688 B / (1000 x 141 GB/s) = 7.8 + 0.8134.
    assert results[1].nccl_model_us == pytest.approx(8.6134, abs=1e-4)
    assert results[1].in_force is True
    assert results[1].nccl_version == "2.28.9"


def test_environment_is_explicit(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_PROTO", "Simple")
    monkeypatch.setenv("NCCL_MIN_NCHANNELS", "8")
    monkeypatch.setenv("SECRET_TOKEN", "not for a report")
    measure(tmp_path, setting=BASE, launches=1, probe=False)
    (call,) = calls(tmp_path)
    assert {k: v for k, v in call["env"].items() if k.startswith("NCCL_")} == {"NCCL_NVLS_ENABLE": "0"}
    assert "SECRET_TOKEN" not in call["env"]
    assert "PATH" in call["env"]


def test_text_report_where_the_build_has_no_json(tmp_path):
    results = measure(tmp_path, "text_only")
    assert not supports_json(Path(tmp_path / "all_reduce_perf"))
    # The table prints two decimals.
    assert results[0].in_place_us == [7.48, 7.48]


def test_wrong_results_disqualify(tmp_path):
    results = measure(tmp_path, "wrong")
    assert {r.status for r in results} == {"wrong_results"}
    # The second launch is spared: 3 wrong elements in place, counted once.
    assert results[0].num_wrong == 3


@pytest.mark.parametrize(("behaviour", "kind"), [("bad-proto", "usage"), ("unsupported-algo", "no_algorithm")])
def test_refused_setting_is_a_record(tmp_path, behaviour, kind):
    results = measure(tmp_path, behaviour)
    assert {(r.status, r.failure.kind) for r in results} == {("unsupported", kind)}
    assert len(calls(tmp_path)) == 1


def test_hang_keeps_what_was_done_and_leaves_no_process(tmp_path):
    started = time.monotonic()
    results = measure(tmp_path, "hang", probe=False, launches=1, timeout_s=1.5)
    assert time.monotonic() - started < 8
    assert [r.status for r in results] == ["ok", "timeout", "timeout"]
    assert results[0].in_place_us == [7.48]
    assert results[1].failure.kind == "hang"
    assert "14336" in results[1].failure.message
    pids = [int(path.name[4:]) for path in tmp_path.glob("pid-*")]
    assert pids
    assert not [pid for pid in pids if is_running(pid)]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_deadline_is_a_timeout_not_a_hang(tmp_path):
    results = measure(tmp_path, deadline=time.monotonic() - 1)
    assert {r.failure.kind for r in results} == {"timeout"}
    assert not (tmp_path / "calls.jsonl").exists()


def test_garbage_and_crash_are_records(tmp_path):
    assert {r.failure.kind for r in measure(tmp_path, "garbage", probe=False)} == {"layout"}
    crashed = measure(tmp_path, "crash", probe=False)
    assert {r.failure.kind for r in crashed} == {"crash"}
    assert "signal 6" in crashed[0].failure.message


def test_refused_threads_are_not_credited(tmp_path):
    setting = Setting.make({"NCCL_NTHREADS": "500"})
    results = measure(tmp_path, setting=setting)
    assert {r.status for r in results} == {"not_in_force"}
    assert results[0].rejected[0].in_force == "512"
    case = Case(setting=setting, size_bytes=14336, timing="back-to-back", num_ranks=2, dtype="bfloat16", base="sglang",
                backend="nccl-tests")  # fmt: skip
    record = to_measurement(case, results[0], NcclTestsOptions(), order=4)
    assert (record.status, record.samples_us, record.in_force) == ("not_in_force", [], False)
    assert "multiple of 32" in record.error.message


def test_protocol_that_nccl_did_not_use_is_not_credited(tmp_path):
    results = measure(tmp_path, "ignores_proto")
    assert {r.status for r in results} == {"not_in_force"}
    assert "Simple" in results[0].why_not_in_force


def test_measurement_record(tmp_path):
    result = measure(tmp_path, sizes=[14336])[0]
    case = Case(setting=LL, size_bytes=14336, timing="back-to-back", num_ranks=2, dtype="bfloat16", base="sglang",
                backend="nccl-tests")  # fmt: skip
    record = to_measurement(case, result, NcclTestsOptions(), order=3, started_at="2026-11-29T22:13:55+00:00")
    assert record.samples_us == [7.475539, 7.475539]
    assert (record.count, record.order, record.num_per_replay, record.median_us) == (7168, 3, 50, 7.475539)
    out_of_place = to_measurement(case, result, NcclTestsOptions(placement="out_of_place"))
    assert out_of_place.median_us == 7.401589


def test_finding_the_program(tmp_path, monkeypatch):
    path = program(tmp_path)
    clone = tmp_path / "nccl-tests" / "build"
    clone.mkdir(parents=True)
    os.link(path, clone / "all_reduce_perf")
    monkeypatch.delenv("NCCL_TESTS", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_all_reduce_perf(path) == Path(path)
    assert find_all_reduce_perf(str(tmp_path)) == Path(path)
    assert find_all_reduce_perf(str(tmp_path / "nccl-tests")) == clone / "all_reduce_perf"
    with pytest.raises(MachineError, match="--nccl-tests"):
        find_all_reduce_perf(None)
    with pytest.raises(MachineError, match="not there"):
        find_all_reduce_perf(str(tmp_path / "missing"))
    monkeypatch.setenv("NCCL_TESTS", str(tmp_path / "nccl-tests"))
    assert find_all_reduce_perf(None) == clone / "all_reduce_perf"
    monkeypatch.delenv("NCCL_TESTS")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_all_reduce_perf(None) == Path(path)


def test_a_program_that_is_none_says_so(tmp_path):
    path = tmp_path / "all_reduce_perf"
    path.write_text("#!/bin/sh\necho 'error while loading shared libraries: libcudart.so.13'; exit 127\n")
    path.chmod(0o755)
    with pytest.raises(MachineError, match=r"libcudart"):
        measure_setting(BASE, {}, [1024], 2, "bfloat16", options=NcclTestsOptions(path=str(path)))


def test_sizes_must_be_whole_elements(tmp_path):
    with pytest.raises(InputError, match="1023"):
        measure(tmp_path, sizes=[1023])
    with pytest.raises(InputError, match="fp8"):
        measure_setting(BASE, {}, [1024], 2, "fp8", options=NcclTestsOptions(path=program(tmp_path)))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([14336], [SizeRun((14336,))]),
        ([1024, 2048, 4096, 8192], [SizeRun((1024, 2048, 4096, 8192), factor=2)]),
        ([14336, 28672, 43008, 57344], [SizeRun((14336, 28672, 43008, 57344), step_bytes=14336)]),
        # 1, 2, 4, 8 and 16 tokens by doubling; 3 tokens need a call of their own.
        (
            [14336 * tokens for tokens in (1, 2, 3, 4, 8, 16)],
            [
                SizeRun((14336, 28672, 57344, 114688, 229376), factor=2),
                SizeRun((43008,)),
            ],
        ),
    ],
)
def test_fewest_ranges(sizes, expected):
    assert size_runs(sizes) == expected


def test_ranges_ask_for_exactly_the_sizes():
    sizes = [14336 * tokens for tokens in (*range(1, 17), 32, 48, 64, 100)]
    runs = size_runs(sizes)
    assert sorted(size for run in runs for size in run.sizes) == sizes
    for run in runs:
        size, seen = run.sizes[0], []
        while size <= run.sizes[-1]:
            seen.append(size)
            size = size * (run.factor or 1) + (run.step_bytes or 0)
            if run.factor is None and run.step_bytes is None:
                break
        assert tuple(seen) == run.sizes
