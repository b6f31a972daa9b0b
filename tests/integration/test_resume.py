"""A run that was cut short, damaged, moved or filled its disk: one clear error, or it goes on where it was."""

import json
import shutil
import subprocess

import pytest
from real_scans import BASE_COMMAND, gloo_scan

from nccltune.cli import _errors, cli
from nccltune.store import Run

pytestmark = pytest.mark.slow

SIZES = [1024, 2048]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """One complete run for the whole module; tests work on copies."""
    path = tmp_path_factory.mktemp("measured") / "run"
    assert gloo_scan(path, SIZES).outcome == "complete"
    return path


@pytest.fixture
def run(measured, tmp_path):
    """A copy of the complete run."""
    return shutil.copytree(measured, tmp_path / "run")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 48 KiB, where this user may mount one."""
    path = tmp_path / "disk"
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", str(path)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no tmpfs can be mounted here ({made.stderr.strip()}); tests/unit/test_store.py fakes a full disk")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def invoke(*args):
    return _errors.run(cli, ["scan", *map(str, args)])


def lines(path):
    return (path / "measurements.jsonl").read_bytes().splitlines()


def edit_manifest(path, **fields):
    file = path / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def test_a_complete_run_has_nothing_left_to_do(run, capsys):
    before = {name: (run / name).read_bytes() for name in ("manifest.json", "measurements.jsonl")}
    assert invoke("--resume", run, "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["counts"] == {"ok": 2}
    assert "nothing is measured" in err
    assert {name: (run / name).read_bytes() for name in before} == before


def test_flags_beside_resume_must_ask_for_what_the_run_holds(run, capsys):
    assert invoke("--resume", run, "--backend", "gloo", "--sizes", "1K,2K", "-q") == 0
    for wrong, words in (
        (["--sizes", "4K"], "size_bytes: the run has [1024, 2048], the flags ask for [4096]"),
        (["--ranks", "3", "--backend", "gloo"], "num_ranks: the run has 2, the flags ask for 3"),
        (["--proto", "LL", "--sizes", "1K,2K"], "the run has no setting LL"),
        (["--model", "deepseek-v3", "--sizes", "1K,2K"], "model: the run has None"),
        (["-o", run.parent / "other"], "a resumed run stays where it is"),
        (["--dry-run"], "--dry-run and --resume do not go together"),
    ):
        capsys.readouterr()
        assert invoke("--resume", run, *wrong) == 2, wrong
        assert words in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["cut", "empty", "newer", "not-utf-8", "no-field", "missing"])
def test_a_damaged_manifest_is_one_clear_error(run, capsys, damage):
    file = run / "manifest.json"
    text, words = file.read_bytes(), ""
    if damage == "cut":
        file.write_bytes(text[: len(text) // 2])
        words = f"{file} is not JSON"
    elif damage == "empty":
        file.write_bytes(b"")
        words = f"{file} is not JSON"
    elif damage == "newer":
        edit_manifest(run, schema_version=99)
        words = "update nccltune"
    elif damage == "not-utf-8":
        file.write_bytes(b"\xff\xfe" + text)
        words = f"cannot read {file}"
    elif damage == "no-field":
        edit_manifest(run, num_ranks="two")
        words = "num_ranks"
    else:
        file.unlink()
        words = "it has no manifest.json"
    assert invoke("--resume", run) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert err.startswith("Error: ")
    assert (out, "Traceback" in err) == ("", False)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"schema": "nccltune.measurement", "schema_version": 2, "case_id": "x"}', "update nccltune"),
        (b'{"schema": "nccltune.fit", "schema_version": 1}', "is not a nccltune.measurement file"),
        (b"\xff\xfe\x00garbage", "measurements.jsonl:3 is not a measurement"),
        (
            b'{"schema": "nccltune.measurement", "schema_version": 1, "case_id": "x"}',
            "measurements.jsonl:3 is not a valid measurement",
        ),
    ],
)
def test_a_wrong_line_is_named(run, capsys, line, words):
    file = run / "measurements.jsonl"
    file.write_bytes(b"\n".join([*lines(run)[:2], line]) + b"\n")
    assert invoke("--resume", run) == 2
    assert words in capsys.readouterr().err


def test_a_cut_last_line_is_measured_again(run):
    kept, cut = lines(run)[:2]
    (run / "measurements.jsonl").write_bytes(kept + b"\n" + cut[:-40])
    result = gloo_scan(run, [], resume=True)
    assert result.outcome == "complete"
    assert any("cut by a crash" in note for note in result.notes)
    cases = {m.size_bytes: m for m in result.run.measurements() if not m.repeat}
    assert {size: m.status for size, m in cases.items()} == {1024: "ok", 2048: "ok"}
    assert lines(run)[0] == kept, "what was whole is as it was"
    assert lines(run)[1] == cut[:-40], "the cut line was ended, not joined with the next"


def test_another_machine_is_refused_by_name(run, capsys):
    machine = json.loads((run / "manifest.json").read_text())["machine"]
    edit_manifest(run, machine={**machine, "hostname_hash": "deadbeef"})
    assert invoke("--resume", run) == 2
    err = capsys.readouterr().err
    assert "was measured on another machine" in err
    assert "host deadbeef; here:" in err
    assert f"host {machine['hostname_hash']}" in err


def test_a_run_is_never_overwritten(run, capsys):
    before = (run / "measurements.jsonl").read_bytes()
    assert invoke("--backend", "gloo", "--sizes", "1K", "-o", run) == 2
    assert f"use --resume {run}" in capsys.readouterr().err
    (run / "manifest.json").unlink()
    assert invoke("--backend", "gloo", "--sizes", "1K", "-o", run) == 2, (
        "measurements without their manifest are not adopted"
    )
    assert (run / "measurements.jsonl").read_bytes() == before


def test_the_time_budget_ends_the_scan_and_resume_goes_on(tmp_path, capsys):
    path = tmp_path / "run"
    sizes = ",".join(str(1024 * n) for n in range(1, 41))
    # Forty sizes of up to a second each do not fit, however fast the ranks start.
    assert (
        invoke(
            *BASE_COMMAND[1:],
            "--max-replays",
            "100000",
            "--noise",
            "0.01",
            "--sizes",
            sizes,
            "--time-budget",
            "3s",
            "-o",
            path,
        )
        == 124
    )
    err = capsys.readouterr().err
    assert f"The time limit was reached; what is done is saved. Go on with: nccltune scan --resume {path}" in err
    run = Run.load(path)
    assert run.manifest.status == "time_limit"
    assert len(run.measurements()) < 40


def test_a_full_disk_is_one_error_and_the_run_goes_on_when_there_is_room(small_disk, capsys):
    path, ballast = small_disk / "run", small_disk / "ballast"
    ballast.write_bytes(bytes(40 << 10))
    sizes = [1024 * n for n in range(1, 7)]
    # 48 KiB hold the ballast, the manifest twice (it is replaced whole) and three of the six records of 1.3 KiB.
    assert invoke(*BASE_COMMAND[1:], "--sizes", ",".join(map(str, sizes)), "-o", path) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("Error: ") == 1
    assert "No space left on device" in err
    assert f"nccltune scan --resume {path}" in err
    done = {m.case_id for m in Run.load(path).measurements()}
    assert 0 < len(done) < len(sizes)
    ballast.write_bytes(b"")
    subprocess.run(["mount", "-o", "remount,size=1m", str(small_disk)], check=True)
    result = gloo_scan(path, [], resume=True)
    assert result.outcome == "complete"
    assert sorted(m.size_bytes for m in result.run.measurements() if not m.repeat) == sizes
    assert done < {m.case_id for m in result.run.measurements()}


def test_a_read_only_folder_is_one_error_before_anything_runs(small_disk, capsys):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert invoke("--backend", "gloo", "--sizes", "1K", "-o", small_disk / "run") == 1
    err = capsys.readouterr().err
    assert "cannot make the run folder" in err
    assert "Read-only file system" in err
    assert list(small_disk.iterdir()) == []
