"""Where a command may write: its inputs, a run's files and other people's files are safe, by the real commands."""

import json
import shutil
from pathlib import Path

import pytest

from nccltune import store
from nccltune.cli import main
from nccltune.errors import InputError, NccltuneError
from nccltune.outputs import check_output

DATA = Path(__file__).parents[1] / "data"
RUN = Path(__file__).parents[2] / "reports" / "2026-11-30-h200-x2" / "data" / "nt"
POINTS = "phase,batch_size,draft_tokens,time_ms\ndecode,1,1,4.5\n"


@pytest.fixture
def invoke(capsys):
    """Run a command; return its exit code and what it printed."""

    def run(*argv):
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in argv])
        said = capsys.readouterr()
        return stop.value.code, said.out, said.err

    return run


@pytest.fixture
def refused(invoke):
    """A command must refuse to write to a file, and leave it as it is."""

    def check(argv, path, words):
        before = path.read_bytes()
        code, _, err = invoke(*argv)
        assert code == 2, err
        assert words in err
        assert path.read_bytes() == before

    return check


@pytest.fixture
def foreign(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("mine\n")
    return path


@pytest.fixture
def points(tmp_path):
    path = tmp_path / "points.csv"
    path.write_text(POINTS)
    return path


def test_an_input_is_not_an_output(tmp_path, points, refused):
    calibrate = ["calibrate", "--model", "qwen3-30b-a3b", "--topology", "h200-x2", "--points", points, "-o"]
    refused([*calibrate, points], points, "is an input of this command")
    link = tmp_path / "link.json"
    link.symlink_to(points)
    refused([*calibrate, link], points, "is an input of this command")
    report = tmp_path / "report.txt"
    shutil.copy(DATA / "sglang" / "01-v053-accept-len-and-rate.txt", report)
    refused(["import", report, "-o", report], report, "is an input of this command")


def test_the_files_of_a_run_are_not_an_output(tmp_path, refused):
    shutil.copytree(RUN, tmp_path / "run")
    for name in ("measurements.jsonl.gz", "manifest.json"):
        refused(
            ["fit", tmp_path / "run", "--csv", tmp_path / "run" / name], tmp_path / "run" / name, "is a run's own file"
        )


def test_somebody_elses_file_is_kept_and_an_earlier_output_is_replaced(tmp_path, foreign, points, invoke, refused):
    log = DATA / "sglang" / "01-v053-accept-len-and-rate.txt"
    calibrate = ["calibrate", "--model", "qwen3-30b-a3b", "--topology", "h200-x2", "--points", points, "-o"]
    predict = ["predict", "--draft-tokens", "1-3", "--accept-length", "1.9", "--accept-steps", "2", "--adaptive-config"]
    shutil.copytree(RUN, tmp_path / "run")
    fit = ["fit", tmp_path / "run", "--csv"]
    for argv in (["import", log, "-o"], calibrate, predict, fit):
        refused([*argv, foreign], foreign, "was not written by nccltune")
        for _ in range(2):
            code, _, err = invoke(*argv, tmp_path / "out")
            assert code == 0, err
        (tmp_path / "out").unlink()


def test_a_ladder_longer_than_what_is_looked_at_is_still_ours(tmp_path, invoke):
    path = tmp_path / "ladder.json"
    argv = ["predict", "--draft-tokens", "1-3", "--batch", "1-400", "--accept-length", "1.9", "--accept-steps", "2", "--adaptive-config", path]  # fmt: skip
    assert invoke(*argv)[0] == 0
    assert path.stat().st_size > 4096
    assert invoke(*argv)[0] == 0


def test_a_profile_to_stdout(points, invoke):
    code, out, _ = invoke("calibrate", "--model", "qwen3-30b-a3b", "--topology", "h200-x2", "--points", points, "-o", "-")  # fmt: skip
    assert code == 0
    assert json.loads(out)["schema"] == "nccltune.profile"
    assert not Path("-").exists()


def test_devices_may_be_written_and_folders_may_not(tmp_path):
    check_output(Path("/dev/null"))
    check_output(tmp_path / "new")
    for path, words in ((tmp_path, "is a folder"), (tmp_path / "no" / "where", "cannot write")):
        with pytest.raises(InputError, match=words):
            check_output(path)


def test_a_number_that_json_has_not_is_never_written(tmp_path):
    with pytest.raises(NccltuneError, match="was not written"):
        store.write_json(tmp_path / "x.json", {"value": float("nan")})
    assert not (tmp_path / "x.json").exists()
