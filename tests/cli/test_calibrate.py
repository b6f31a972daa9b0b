"""``nccltune calibrate`` on the command line."""

import json

import pytest

from nccltune.cli import main


def invoke(capsys, *args):
    with pytest.raises(SystemExit) as stop:
        main([*args])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


QWEN = ("calibrate", "--model", "qwen3-30b-a3b", "--topology", "h200-x2")


def test_points_on_the_command_line_make_a_profile_that_predictions_use(capsys, tmp_path):
    path = tmp_path / "p.json"
    code, out, err = invoke(capsys, *QWEN, "--point", "decode:1:4.57", "--point", "decode:16:9.09", "--context", "224", "-o", str(path))  # fmt: skip
    assert code == 0
    assert "decode:16:1 base" in out
    assert "no verify or cycle point" in err
    document = json.loads(path.read_text())
    assert (document["schema"], document["schema_version"]) == ("nccltune.profile", 1)
    code, out, _ = invoke(capsys, "predict", "--draft-tokens", "1", "--batch", "4", "--profile", str(path), "--json")
    row = json.loads(out)["rows"][0]
    # measured once at batch 4: 6.00 ms; batches 1 and 16 were calibrated on
    assert row["cycle_ms"]["value"] == pytest.approx(6.00, rel=0.03)
    assert row["cycle_ms"]["low"] < 6.00 < row["cycle_ms"]["high"]
    assert row["cycle_ms"]["source"] == "interpolated"


def test_a_points_file_with_json_output(capsys, tmp_path):
    points = tmp_path / "points.csv"
    points.write_text("time_ms,setting,phase,batch_size,draft_tokens,accept_length,engine\n11.26,seed,decode,1,1,,SGLang\n19.85,seed,cycle,1,3,1.87,SGLang\n")  # fmt: skip
    code, out, _ = invoke(capsys, "calibrate", "--model", "kimi-k2.5", "--topology", "rtx-pro-6000-x8", "--points", str(points), "-o", str(tmp_path / "p.json"), "--json")  # fmt: skip
    document = json.loads(out)
    assert code == 0
    assert document["engine"] == "SGLang"
    assert document["acceptance"]["mean"] == pytest.approx(1.87)
    assert [p["point"]["phase"] for p in document["points"]] == ["decode", "cycle"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((*QWEN, "-o", "p.json"), "no points"),
        ((*QWEN, "--point", "decode:1", "-o", "p.json"), "is not a point"),
        ((*QWEN, "--points", "nosuch.csv", "-o", "p.json"), "does not exist"),
        (("calibrate", "--model", "qwen3-30b-a3b", "--point", "decode:1:4", "-o", "p.json"), "machine is not known"),
        (
            ("calibrate", "--model", "nosuch", "--topology", "h200-x2", "--point", "decode:1:4", "-o", "p.json"),
            "no model",
        ),
        ((*QWEN, "--run", "nosuch", "--point", "decode:1:4", "-o", "p.json"), "run folder"),
        ((*QWEN, "--point", "decode:1:4"), "--output"),
    ],
)
def test_errors_are_clear(capsys, monkeypatch, tmp_path, args, says):
    monkeypatch.chdir(tmp_path)
    code, out, err = invoke(capsys, *args)
    assert (code, out) == (2, "")
    assert says in err
    assert not (tmp_path / "p.json").exists()


def test_an_unwritable_output_fails_without_a_traceback(capsys, tmp_path):
    code, _, err = invoke(capsys, *QWEN, "--point", "decode:1:4.57", "-o", str(tmp_path / "no" / "p.json"))
    assert code == 2
    assert "cannot write" in err


def test_a_setting_named_like_an_emoji_is_printed_as_it_is(capsys, tmp_path):
    point = "decode:1:15.9@NCCL_PROTO=Simple;NCCL_ALGO=allreduce:ring"
    code, _, err = invoke(capsys, "calibrate", "--model", "kimi-k2.5", "--topology", "rtx-pro-6000-x8", "--point", point, "-o", str(tmp_path / "p.json"))  # fmt: skip
    assert code == 0
    assert "allreduce:ring: the ratio" in err
    assert err.isascii()


def test_points_kept_for_scoring_are_left_out_and_said_so(capsys, tmp_path):
    points = tmp_path / "points.csv"
    header = "phase,batch_size,draft_tokens,context_tokens,time_ms,use\n"
    points.write_text(header + "decode,1,1,224,4.57,\ndecode,4,1,224,6.00,score\n")
    code, out, err = invoke(capsys, *QWEN, "--points", str(points), "-o", str(tmp_path / "p.json"))
    assert code == 0
    assert "decode:4:1" not in out
    assert "1 point(s) marked use=score are left out" in err
    points.write_text(header + "decode,4,1,224,6.00,score\n")
    code, _, err = invoke(capsys, *QWEN, "--points", str(points), "-o", str(tmp_path / "q.json"))
    assert code == 2
    assert "every point is marked use=score" in err
