"""``nccltune validate points`` on the command line: exit codes, one JSON document, clear errors."""

import json

import pytest

from nccltune.cli import main

QWEN = ("--model", "qwen3-30b-a3b", "--topology", "h200-x2")
# 2x H200, SGLang 0.5.14, dummy weights, NCCL carrying the all-reduce (docs/model.md, Accuracy)
H200 = """phase,batch_size,draft_tokens,context_tokens,time_ms,accept_length,setting,engine,use
decode,1,1,224,4.57,,,SGLang 0.5.14,calibrate
decode,16,1,224,9.09,,,SGLang 0.5.14,calibrate
cycle,1,3,224,7.29,2,,SGLang 0.5.14,calibrate
decode,4,1,224,5.99,,,SGLang 0.5.14,
decode,4,1,224,6.01,,,SGLang 0.5.14,score
cycle,4,3,224,10.40,2,,SGLang 0.5.14,
cycle,16,3,224,14.35,2,,SGLang 0.5.14,
"""


def invoke(capsys, *args):
    with pytest.raises(SystemExit) as stop:
        main([*args])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def points(capsys, tmp_path, text, *args):
    path = tmp_path / "points.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return invoke(capsys, "validate", "points", str(path), *args)


def test_the_document_of_the_design(capsys, tmp_path):
    code, out, _ = points(capsys, tmp_path, H200, *QWEN, "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["schema"], document["schema_version"]) == ("nccltune.validation", 1)
    arm = next(a for a in document["arms"] if (a["phase"], a["batch_size"]) == ("decode", 4))
    assert set(arm) >= {"phase", "setting", "batch_size", "draft_tokens", "predicted", "measured", "error_percent", "inside_interval", "used_for_calibration"}  # fmt: skip
    assert set(arm["predicted"]) == {"value", "low", "high", "source"}
    # two repetitions: the median, and their range
    assert (arm["measured"]["value"], arm["measured"]["low"], arm["measured"]["high"]) == (6.0, 5.99, 6.01)
    assert arm["error_percent"] == pytest.approx(100 * (arm["predicted"]["value"] / 6.0 - 1))
    summary = document["summary"]
    assert set(summary) >= {"num_scored", "mape_percent", "coverage_percent", "worst_percent", "settings_ranked_right", "regret_percent"}  # fmt: skip
    assert (summary["num_scored"], summary["settings_ranked_right"]) == (3, None)
    scored = [a for a in document["arms"] if not a["used_for_calibration"]]
    assert summary["mape_percent"] == pytest.approx(sum(abs(a["error_percent"]) for a in scored) / 3)
    assert document["warnings"]


def test_the_table_and_the_verdict(capsys, tmp_path):
    code, out, err = points(capsys, tmp_path, H200, *QWEN)
    assert code == 0
    assert "calibrated on" in out
    assert "3 arms scored (3 calibrated on)" in out
    assert "Error" not in err


@pytest.mark.parametrize("as_json", [True, False])
def test_out_of_tolerance_is_exit_4_with_the_whole_answer(capsys, tmp_path, as_json):
    text = H200.replace("14.35", "24.35")
    code, out, err = points(capsys, tmp_path, text, *QWEN, *(["--json"] if as_json else []))
    assert code == 4
    assert "1 of 3 scored arms are out of tolerance" in err
    if as_json:
        assert json.loads(out)["summary"]["within_tolerance"] is False
    else:
        assert "NOT met" in out


def test_nothing_to_score_is_exit_3(capsys, tmp_path):
    text = "phase,batch_size,time_ms,use\ndecode,1,4.57,calibrate\n"
    code, out, err = points(capsys, tmp_path, text, *QWEN, "--json")
    assert code == 3
    assert json.loads(out)["summary"]["num_scored"] == 0
    assert "nothing could be scored" in err


@pytest.mark.parametrize(
    ("text", "args", "says"),
    [
        ("", QWEN, "has no points"),
        ("phase,batch_size,time_ms\n", QWEN, "no points"),
        ("phase,batch,time_ms\ndecode,1,4\n", QWEN, "unknown column"),
        ("phase,batch_size,time_ms\ndecode,1,-4\n", QWEN, "time_ms"),
        ("phase,batch_size,time_ms\ndecode,1,nan\n", QWEN, "time_ms"),
        ("phase,batch_size,time_ms\ndecode,0,4\n", QWEN, "batch_size"),
        ("phase,batch_size,time_ms\ndecode,1\n", QWEN, "2 cells"),
        ("phase,batch_size,time_ms,use\ndecode,1,4,both\n", QWEN, "use"),
        (b"\xff\xfe\x00", QWEN, "cannot read"),
        (H200, ("--model", "nosuch", "--topology", "h200-x2"), "no model"),
        (H200, ("--model", "qwen3-30b-a3b", "--run", "nosuch"), "run folder"),
        (H200, (*QWEN, "--profile", "nosuch.json"), "does not exist"),
        (H200, (*QWEN, "--tolerance", "0"), "tolerance"),
        (H200, (*QWEN, "--drafter", "kimi-k2.5-eagle3"), "does not fit"),
        (H200, ("--topology", "h200-x2"), "--model"),
    ],
)
def test_what_cannot_be_read_is_exit_2(capsys, tmp_path, text, args, says):
    code, out, err = points(capsys, tmp_path, text, *args)
    assert (code, out) == (2, "")
    assert says in err


def test_a_missing_file_is_exit_2(capsys, tmp_path):
    code, _, err = invoke(capsys, "validate", "points", str(tmp_path / "no.csv"), *QWEN)
    assert code == 2
    assert "does not exist" in err


def test_windows_line_ends_and_a_bom_are_read(capsys, tmp_path):
    code, out, _ = points(capsys, tmp_path, b"\xef\xbb\xbf" + H200.replace("\n", "\r\n").encode(), *QWEN, "--json")
    assert code == 0
    assert json.loads(out)["summary"]["num_scored"] == 3
