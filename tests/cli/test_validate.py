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


# -- validate trace, validate sglang --------------------------------------------------------------------------------
def test_a_setting_without_a_run_is_wrong_usage(capsys, tmp_path):
    code, _, err = invoke(capsys, "validate", "trace", str(tmp_path / "t.json"), "--setting", "base")
    assert code == 2
    assert "give --run" in err


def trace_file(path, num=97):
    events = []
    for launch in range(4):
        events.append(
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaGraphLaunch",
                "ts": launch,
                "dur": 1,
                "args": {"correlation": launch},
            }
        )
        for i in range(num):
            name = "ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(ncclDevKernelArgsStorage<4096ul>)"
            events.append({"ph": "X", "cat": "kernel", "name": name, "ts": 10_000 * launch + 20 * i, "dur": 8, "args": {"device": 0, "correlation": launch}})  # fmt: skip
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_trace_tells_count_kernels_and_total(capsys, tmp_path):
    path = trace_file(tmp_path / "t.json")
    code, out, _ = invoke(capsys, "validate", "trace", str(path), "--model", "qwen3-30b-a3b", "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["schema"], document["target"]["allreduces_per_forward"], document["count_confirmed"]) == (
        "nccltune.trace",
        97,
        True,
    )
    assert document["target"]["kernels"][0]["algo"] == "Tree"
    code, out, _ = invoke(capsys, "validate", "trace", str(path), "--model", "qwen3-30b-a3b")
    assert "97 all-reduces" in out
    assert "as the model file" in out


def test_a_trace_without_all_reduces_is_exit_3(capsys, tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 2}]}')
    code, _, err = invoke(capsys, "validate", "trace", str(path))
    assert code == 3
    assert "no all-reduce kernel" in err


LIVE = ("validate", "sglang", "--model-path", "m", "--draft-model-path", "d", *QWEN, "--tp", "2")


def test_dry_run_prints_commands_variables_and_time(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = invoke(capsys, *LIVE, "--settings", "base", "--settings", "NCCL_PROTO=Simple;NCCL_ALGO=ring,tree", "--draft-tokens", "1,3", "--batch", "1,4",
                          "--simulate-accept-length", "2", "--dry-run", "--json")  # fmt: skip
    plan = json.loads(out)
    assert code == 0
    assert [s["server_id"] for s in plan["servers"]] == [
        "base | D=1", "base | D=3", "NCCL_ALGO=ring,tree; NCCL_PROTO=Simple | D=1", "NCCL_ALGO=ring,tree; NCCL_PROTO=Simple | D=3",
    ]  # fmt: skip
    assert (plan["num_servers"], plan["num_arms"]) == (4, 8)
    drafted = plan["servers"][3]
    assert "--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3" in drafted["command"]
    assert "--cuda-graph-bs-decode 1 4 --max-running-requests 4" in drafted["command"]
    assert drafted["env"]["SGLANG_SIMULATE_ACC_LEN"] == "2"
    assert "NCCL_PROTO" in drafted["env"]
    assert "SGLANG_SIMULATE_ACC_LEN" not in plan["servers"][0]["env"]
    # four starts at 90 s are assumed; the load is a few seconds
    assert 360 < plan["seconds"] < 420
    # neither a curve nor a row tells of the second setting
    assert plan["num_arms_without_estimate"] == 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--settings", "best"), "no run to take the best setting from"),
        (("--settings", "nosuch"), "no setting is called"),
        (("--draft-tokens", "0"), "usable range"),
        (("--batch", "x"), "batch size"),
        (("--extra-args", "--port 3"), "--extra-args holds --port"),
        (("--extra-args", "'"), "cannot be read"),
        (("--env", "NCCL_PROTO=LL"), "NCCL variables are those of the settings"),
        (("--env", "X"), "NAME=VALUE"),
        (("--calibrate", "base:1"), "is not an arm"),
        (("--calibrate", "nosuch:1:1"), "no setting is called"),
        (("--prompts", "nosuch"), "does not exist"),
        (("--attach", "localhost:3"), "not the URL"),
        (("--resume", "nosuch"), "holds no validation"),
        (("--ready-limit", "soon"), "not a time"),
        (("--drafter", "kimi-k2.5-eagle3"), "does not fit"),
    ],
)
def test_live_usage_errors_come_before_anything_starts(capsys, tmp_path, monkeypatch, args, says):
    monkeypatch.chdir(tmp_path)
    code, out, err = invoke(
        capsys, *LIVE, *(() if "--settings" in args else ("--settings", "base")), *args, "--dry-run"
    )
    assert (code, out) == (2, "")
    assert says in err
    assert list(tmp_path.iterdir()) == []


def test_a_drafted_arm_needs_a_drafter(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = invoke(
        capsys,
        "validate",
        "sglang",
        "--model-path",
        "m",
        *QWEN,
        "--tp",
        "2",
        "--settings",
        "base",
        "--draft-tokens",
        "3",
    )
    assert code == 2
    assert "drafted arms need a drafter" in err


def test_a_program_that_does_not_exist_is_a_record(capsys, tmp_path):
    out = tmp_path / "out"
    code, _, err = invoke(
        capsys, *LIVE, "--settings", "base", "--draft-tokens", "1", "--launch", "nosuch-launcher", "-o", str(out)
    )
    assert code == 3
    assert "not_started" in err
    assert '"not_started"' in (out / "records.jsonl").read_text()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--draft-tokens", "100000"), "draft tokens must lie between 1 and 256"),
        (("--batch", "1-70000"), "batch sizes must lie between 1 and 65536"),
        (("--batch", "1-60000"), "are more than 1000"),
    ],
)
def test_sglang_refuses_what_no_prediction_takes_and_nobody_waits_for(capsys, options, says):
    servers = (
        "--model-path",
        "X",
        "--draft-model-path",
        "Y",
        "--model",
        "kimi-k2.5",
        "--tp",
        "8",
        "--settings",
        "base",
    )
    code, _, err = invoke(capsys, "validate", "sglang", "--dry-run", *servers, *options)
    assert code == 2
    assert says in err
