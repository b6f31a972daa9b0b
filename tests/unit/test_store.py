"""Run folders: what is written is read back, what is cut or wrong is caught, and a full disk is one clear error."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nccltune import stats, store
from nccltune.bench import records
from nccltune.errors import InputError, NccltuneError
from nccltune.schemas.machine import Machine
from nccltune.schemas.measurement import Case, Choice, Failure
from nccltune.schemas.run import Manifest
from nccltune.schemas.setting import BASE, Setting
from nccltune.store import MANIFEST, MEASUREMENTS, Run

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
MACHINE = Machine(
    hostname_hash="0badc0de", os="Linux", kernel="6", python="3.11", cpu_model="cpu", num_cpus=2, memory_bytes=1
)
LL = Setting.make({"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"})


def manifest(**fields):
    values = {
        "nccltune_version": "0", "created_at": "2026-11-01T00:00:00+00:00", "command": ["nccltune", "scan"], "run_id": "r", "backend": "gloo",
        "base": "sglang", "base_env": {}, "num_ranks": 2, "dtype": "bfloat16", "model": None, "tokens": [], "size_bytes": [1024, 2048],
        "timings": ["back-to-back"], "settings": [BASE], "plan_id": "0", "machine": MACHINE,
    }  # fmt: skip
    return Manifest(**{**values, **fields})


def measured(size=1024, setting=BASE, **fields):
    case = Case(
        setting=setting,
        size_bytes=size,
        timing="back-to-back",
        num_ranks=2,
        dtype="bfloat16",
        base="sglang",
        backend="gloo",
    )
    samples = [10.0, 10.5, 11.25]
    return records.record(case, "ok", **{"samples_us": samples, "stats": stats.summarize(samples).to_dict(), **fields})


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path / "run", manifest())


def append_bytes(run, data):
    with (run.path / MEASUREMENTS).open("ab") as file:
        file.write(data)


def test_what_is_appended_is_read_back_as_it_was(run):
    case = Case(
        setting=LL, size_bytes=2048, timing="back-to-back", num_ranks=2, dtype="bfloat16", base="sglang", backend="gloo"
    )
    made = [
        measured(),
        measured(
            2048,
            choice=Choice(algo="Ring", proto="LL", num_channels=3, transports={"P2P": 4}),
            warnings=["90% interval is 12% wide"],
        ),
        records.record(
            case, "timeout", error=Failure(kind="hang", message='rank 1 said "no" \u2028 \x00 \u00e9', rank=1)
        ),
    ]
    run.append(made[:1])
    run.append(made[1:])
    again = Run.load(run.path)
    assert again.measurements() == made
    assert again.manifest == run.manifest
    assert again.num_cut_lines == 0
    assert Run.load(run.path / MANIFEST).path == run.path, "the manifest's path names the run too"


def test_the_last_line_of_a_case_wins(run):
    run.append([measured(), measured(2048), measured(seconds=1.5)])
    assert [(m.size_bytes, m.seconds) for m in run.measurements()] == [(1024, 1.5), (2048, 0.0)]


@pytest.mark.parametrize("num_bytes", [1, 20, 45, 60, 300])
def test_a_line_cut_by_a_crash_is_left_out_and_counted(run, num_bytes):
    run.append([measured(), measured(2048)])
    file = run.path / MEASUREMENTS
    first, second = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first + second[:num_bytes])
    assert [m.size_bytes for m in run.measurements()] == [1024]
    assert run.num_cut_lines == 1
    # What is appended next begins on a line of its own.
    run.append([measured(4096)])
    assert [m.size_bytes for m in Run.load(run.path).measurements()] == [1024, 4096]


def test_blocks_of_zeros_after_a_power_cut_are_left_out(run):
    run.append([measured()])
    append_bytes(run, b"\0" * 512)
    assert len(run.measurements()) == 1
    run.append([measured(2048)])
    assert [m.size_bytes for m in run.measurements()] == [1024, 2048]


def test_what_an_editor_adds_does_no_harm(run):
    run.append([measured(), measured(2048)])
    file = run.path / MEASUREMENTS
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n") + b"\r\n  \n")
    assert [m.size_bytes for m in run.measurements()] == [1024, 2048]


def test_an_empty_or_missing_file_is_a_run_not_begun(run):
    assert run.measurements() == []
    append_bytes(run, b"")
    assert run.measurements() == []


HEAD = '{"schema": "nccltune.measurement", "schema_version": 1, '


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"no json", "it is not JSON"),
        (b"\xff\xfe{\x00", "it is not JSON"),
        (b"[]", "its schema is 'list'"),
        (b'{"case_id": "x"}', "its schema is None"),
        (b'{"schema": "nccltune.run", "schema_version": 1}', "its schema is 'nccltune.run'"),
        (b'{"schema": "nccltune.measurement", "schema_version": 2}', "update nccltune"),
        (HEAD.encode() + b'"case_id": "x"}', "setting: Field required"),
    ],
)
def test_a_wrong_line_is_an_error_that_names_it(run, line, words):
    run.append([measured()])
    append_bytes(run, line + b"\n")
    with pytest.raises(InputError) as caught:
        run.measurements()
    assert f"{MEASUREMENTS}:2" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("status", "fine", "status: Input should be"),
        ("size_bytes", "many", "size_bytes: Input should be a valid integer"),
        ("samples_us", [], "times are present exactly when a case is ok"),
        ("samples_us", [float("nan")], "samples_us.0: Input should be a finite number"),
        ("surprise", 1, "surprise: Extra inputs are not permitted"),
        ("setting", {"name": "x", "env": {"PATH": "/"}}, "is not an NCCL variable name"),
    ],
)
def test_a_wrong_field_is_an_error_on_the_fast_path_too(run, field, value, words):
    """Lines as the store writes them are read in one step: it must check as much as the slow one."""
    run.append([measured()])
    document = json.loads((run.path / MEASUREMENTS).read_text())
    (run.path / MEASUREMENTS).write_text(json.dumps({**document, field: value}) + "\n")
    assert (run.path / MEASUREMENTS).read_text().startswith(HEAD)
    with pytest.raises(InputError, match=f"{MEASUREMENTS}:1 is not a valid measurement") as caught:
        run.measurements()
    assert words in str(caught.value)


def test_the_collector_runs_again_after_a_load_that_failed(run):
    import gc

    append_bytes(run, b"no json\n")
    with pytest.raises(InputError):
        run.measurements()
    assert gc.isenabled()


def full(*_args, **_kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_a_clear_error_and_what_was_written_stays(run, monkeypatch):
    run.append([measured()])
    with monkeypatch.context() as patch:
        patch.setattr(store.os, "fsync", full)
        patch.setattr(store, "SYNC_EVERY_S", 0.0)
        with pytest.raises(NccltuneError) as caught:
            run.append([measured(2048)])
        assert caught.value.lines() == [
            f"cannot append to {run.path / MEASUREMENTS}",
            "why: No space left on device",
            f"do:  free some space, then run: nccltune scan --resume {run.path}",
        ]
        assert caught.value.exit_code == 1
        with pytest.raises(NccltuneError, match="cannot write"):
            run.update(status="failed")
    assert sorted(p.name for p in run.path.iterdir()) == [MANIFEST, MEASUREMENTS], "no half-written file is left"
    again = Run.load(run.path)
    assert again.manifest.status == "running", "the manifest is the old one, whole"
    assert again.measurements()[0].size_bytes == 1024


def test_a_run_is_never_overwritten(run, tmp_path):
    with pytest.raises(InputError, match="already holds a run"):
        Run.create(run.path, manifest())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / MEASUREMENTS).write_text("")
    with pytest.raises(InputError, match="already holds a run"):
        Run.create(tmp_path / "other", manifest())


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NccltuneError, match="cannot make the run folder"):
        Run.create(tmp_path / "file" / "run", manifest())
    with pytest.raises(InputError, match=r"is not a run folder; why: it has no manifest\.json"):
        Run.load(tmp_path)


def test_a_large_run_loads_within_the_target(tmp_path):
    """A twentieth of benchmarks/run_load.py; ten times its share of the time, because test machines are busy."""
    import time

    import run_load

    run_load.write(tmp_path / "run", 5000)
    run = Run.load(tmp_path / "run")
    start = time.perf_counter()
    found = run.measurements()
    assert len(found) == 5000
    assert {m.status for m in found} == {"ok", "timeout"}
    assert time.perf_counter() - start < 10 * run_load.TARGET_S * 5000 / run_load.NUM_MEASUREMENTS


def test_a_device_is_written_to_and_never_replaced(tmp_path):
    # A pipe stands for /dev/null, which no test should put at risk: neither is a regular file.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    store.write_json(pipe, {"a": 1})
    assert json.loads(os.read(reader, 100)) == {"a": 1}
    os.close(reader)
    assert pipe.is_fifo()
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


def test_a_link_stays_a_link(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    store.write_text(link, "x\n")
    assert link.is_symlink()
    assert target.read_text() == "x\n"


def test_two_processes_never_measure_into_one_run(tmp_path):
    run = Run.create(tmp_path / "run", manifest())
    run.append([measured()])
    code = (
        "import sys; from pathlib import Path; from nccltune import run_lock\n"
        "try: run_lock.take(Path(sys.argv[1]))\n"
        "except Exception as error: print(error)"
    )

    def other():
        done = subprocess.run([sys.executable, "-c", code, str(run.path)], capture_output=True, text=True, check=True)
        return done.stdout

    assert "another scan is measuring into" in other()
    run.append([measured(2048)])
    run.update(status="complete")
    assert other() == ""
