"""Ctrl-C once and twice, SIGTERM, a killed rank, a killed manager: by the real command."""

import json
import os
import signal

import pytest
from real_scans import BASE_COMMAND, Command, gloo_scan, num_lines, wait_for, workers

from nccltune.bench import workdir
from nccltune.store import Run

pytestmark = pytest.mark.slow

SIZES = [1024 * n for n in range(1, 13)]
MANY = ",".join(map(str, SIZES))


def test_one_ctrl_c_finishes_the_case_saves_and_resume_measures_the_rest(tmp_path):
    path = tmp_path / "a run"
    with Command([*BASE_COMMAND, "--sizes", MANY, "-o", str(path)]) as command:
        command.wait_for(lambda: num_lines(path) >= 2, "the second case")
        command.send(signal.SIGINT)
        code, _, err = command.finish()
    assert code == 130, err
    assert "stopping after this case; once more stops at once" in err
    assert f"Go on with: nccltune scan --resume '{path}'" in err
    run = Run.load(path)
    assert run.manifest.status == "interrupted"
    first = {m.case_id: m for m in run.measurements()}
    assert 2 <= len(first) < len(SIZES)
    result = gloo_scan(path, [], resume=True)
    assert result.outcome == "complete"
    lines = [json.loads(line) for line in (path / "measurements.jsonl").read_text().splitlines()]
    cases = [line["size_bytes"] for line in lines if not line.get("repeat")]
    assert sorted(cases) == SIZES, "each case once: nothing is missing and nothing was measured again"
    # The rest is measured by the rule of the first part, not by this process's.
    assert {len(line["samples_us"]) for line in lines} == {20}


def test_a_second_signal_stops_at_once(tmp_path, nothing_is_left):
    path, marker = tmp_path / "run", tmp_path / "struck"
    with Command(
        [*BASE_COMMAND, "--sizes", "1K,2K", "--case-timeout", "3000", "-o", str(path)],
        fault=f"hang:size=2048,once={marker}",
    ) as command:
        command.wait_for(marker.exists, "the hang")
        command.send(signal.SIGTERM)  # what a job scheduler sends; then Ctrl-C
        command.wait_for_stderr("once more stops at once")
        assert len(workers(nothing_is_left)) == 2
        command.send(signal.SIGINT)
        code, out, err = command.finish(seconds=10)
    assert code == 130, err
    assert out == ""
    assert f"go on with: nccltune scan --resume {path}" in err
    assert "Traceback" not in err
    run = Run.load(path)
    assert run.manifest.status == "interrupted"
    assert [m.size_bytes for m in run.measurements()] == [1024]


def test_a_rank_killed_from_outside_is_a_record(tmp_path, nothing_is_left):
    path, marker = tmp_path / "run", tmp_path / "struck"
    arguments = [*BASE_COMMAND, "--sizes", "1K,2K,4K", "--json", "-o", str(path)]
    with Command(arguments, fault=f"hang:size=2048,rank=1,once={marker}") as command:
        command.wait_for(marker.exists, "the hang")
        os.kill(workers(nothing_is_left)[0], signal.SIGKILL)
        code, out, _ = command.finish()
    assert code == 3, "a case of the base has no time"
    [failure] = json.loads(out)["failures"]
    assert (failure["size_bytes"], failure["status"], failure["error"]["kind"]) == (2048, "error", "crash")
    assert "SIGKILL" in failure["error"]["message"]
    assert [m.status for m in Run.load(path).measurements() if not m.repeat] == ["ok", "error", "ok"]


def test_a_killed_manager_leaves_no_ranks_and_the_next_scan_cleans_up(tmp_path, nothing_is_left):
    path, marker = tmp_path / "run", tmp_path / "struck"
    with Command(
        [*BASE_COMMAND, "--sizes", "1K,2K", "-o", str(path)], fault=f"hang:size=2048,once={marker}"
    ) as command:
        command.wait_for(marker.exists, "the hang")
        assert workdir.remove_abandoned(settled_s=0) == [], "the folder of a living scan stays"
        command.send(signal.SIGKILL)
        command.finish()
    wait_for(lambda: not workers(nothing_is_left), "the end of the ranks", seconds=5)
    assert [m.size_bytes for m in Run.load(path).measurements()] == [1024]
    assert len(workdir.remove_abandoned(settled_s=0)) == 1
