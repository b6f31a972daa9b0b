"""``nccltune predict`` on the command line: streams, JSON, exit codes, speed of what it imports."""

import json
import re
import subprocess
import sys

import pytest

from nccltune import api
from nccltune.cli import main
from nccltune.costmodel.priors import FIXED, comm_priors
from nccltune.schemas.points import Point
from nccltune.schemas.prediction import Prediction


def invoke(capsys, *args):
    with pytest.raises(SystemExit) as stop:
        main(["predict", *args])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def test_json_is_one_document_in_the_promised_form(capsys):
    code, out, err = invoke(capsys, "--draft-tokens", "3", "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["schema"], document["schema_version"]) == ("nccltune.prediction", 1)
    assert document["model"] == "kimi-k2.5"
    assert [r["draft_tokens"] for r in document["rows"]] == [1, 3]
    value_fields = ("comm_ms", "compute_ms", "overhead_ms", "verify_ms", "draft_ms", "cycle_ms", "accept_length",
                    "tokens_per_s", "speedup", "break_even_accept_length")  # fmt: skip
    for row in document["rows"]:
        for field in value_fields:
            assert set(row[field]) == {"value", "low", "high", "source"}
            assert row[field]["low"] <= row[field]["value"] <= row[field]["high"]
    assert set(document["best"]) == {"batch_size", "draft_tokens", "tied_with", "tokens_per_s", "speedup", "speculate"}
    assert document["baseline"]["tokens_per_s"]["value"] == pytest.approx(88.8, rel=0.02)
    assert "shipped reference" in err
    assert any("shipped reference" in w for w in document["warnings"])
    Prediction.model_validate({k: v for k, v in document.items() if k != "schema"})


def test_text_has_the_table_the_answer_and_what_to_look_at(capsys):
    code, out, err = invoke(capsys, "--draft-tokens", "1-8")
    assert code == 0
    assert "3 draft tokens: 9" in out
    assert "cannot be told from" in out
    assert "verify overhead" in out
    assert "\x1b[" not in out + err
    rows = [line for line in out.splitlines() if line.strip().startswith("1 ")]
    assert len(rows) == 8


def test_quiet_keeps_the_answer_and_drops_the_hints(capsys):
    code, out, err = invoke(capsys, "--draft-tokens", "3", "-q")
    assert (code, err) == (0, "")
    assert "verify ms" in out


def test_explain_lists_every_term_with_its_source(capsys):
    _, out, _ = invoke(capsys, "--draft-tokens", "3", "--explain")
    for words in (
        "attention weights",
        "all-reduces",
        "verify overhead",
        "draft fusion weights",
        "overhead_ms",
        "(fitted)",
        "overhead_exponent 0.24 (hardly told by the points, prior 0.15)",
    ):
        assert words in out
    assert "123 all-reduces of 42 KiB per forward" in out


def test_only_the_values_of_the_priors_are_labelled_prior(capsys):
    medians = {p.name: f"{p.median:.3g}" for p in (*FIXED, *comm_priors("published"))}
    _, out, _ = invoke(capsys, "--draft-tokens", "3", "--explain", "--model", "qwen3-30b-a3b", "--topology", "h200-x2")
    labelled = re.findall(r"(\w+) (\S+) \(prior\)", out)
    assert labelled
    assert all(medians.get(name, value) == value for name, value in labelled)
    _, out, _ = invoke(capsys, "--draft-tokens", "3", "--explain")
    assert all(medians.get(name, value) == value for name, value in re.findall(r"(\w+) (\S+) \(prior\)", out))
    _, out, _ = invoke(capsys, "--draft-tokens", "3", "--explain", "--quant", "fp8")
    assert "(carried over, prior" in out


def test_unknown_acceptance_is_null_in_json_and_a_question_mark_in_text(capsys):
    args = ("--draft-tokens", "3", "--model", "qwen3-30b-a3b", "--topology", "h200-x2")
    document = json.loads(invoke(capsys, *args, "--json")[1])
    assert document["best"] is None
    assert document["rows"][1]["tokens_per_s"] is None
    assert document["rows"][1]["break_even_accept_length"]["value"] > 1
    out = invoke(capsys, *args)[1]
    assert "No acceptance is known" in out
    assert "?" in out


def test_acceptance_from_a_log(capsys, tmp_path):
    log = tmp_path / "server.log"
    log.write_text(
        "[2026-01-01 00:00:00 TP0] Decode batch, #running-req: 1, #token: 100, token usage: 0.00, accept len: 1.93, "
        "accept rate: 0.64, cuda graph: True, gen throughput (token/s): 94.00, #queue-req: 0, \n"
    )
    document = json.loads(invoke(capsys, "--draft-tokens", "3", "--accept-log", str(log), "--json")[1])
    assert document["rows"][1]["accept_length"]["value"] == pytest.approx(1.93)
    assert "server.log" in document["acceptance"]["source"]


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        ((), 2, "draft-tokens"),
        (("--draft-tokens", "x"), 2, "number of draft tokens"),
        (("--draft-tokens", "0"), 2, "usable range"),
        (("--draft-tokens", "3", "--accept-length", "3.5"), 2, "impossible"),
        (("--draft-tokens", "3", "--accept-length", "1_9"), 2, "is not a number"),
        (("--draft-tokens", "3", "--accept-length", "nan"), 2, "is not a finite number"),
        (("--draft-tokens", "3", "--accept-rates", "0.9,0.95"), 2, "--accept-kind"),
        (("--draft-tokens", "3", "--accept-length", "2", "--accept-rates", "0.5"), 2, "contradict"),
        (("--draft-tokens", "3", "--run", "nosuch"), 2, "run folder"),
        (("--draft-tokens", "3", "--model", "kimi"), 2, "did you mean"),
        (("--draft-tokens", "3", "--setting", "NCCL_ALGO=NVLS"), 3, "no all-reduce algorithm"),
    ],
)
def test_errors_have_one_message_and_the_right_code(capsys, args, code, says):
    got, out, err = invoke(capsys, *args)
    assert (got, out) == (code, "")
    assert says in err
    assert "Traceback" not in err


def test_predicting_loads_none_of_the_heavy_packages():
    code = (
        "import sys\nfrom nccltune.cli import main\n"
        "try:\n    main(['predict', '--draft-tokens', '1-8', '--json'])\n"
        "except SystemExit:\n    pass\n"
        "print([m for m in ('torch', 'pandas', 'scipy', 'pynvml') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip().endswith("[]")


def test_the_ladder_is_written_for_sglang(capsys, tmp_path):
    """sglang.md section 4: an object of batch sizes, each with candidate_steps of whole numbers from 0."""
    path = tmp_path / "adaptive.json"
    code, _, _ = invoke(capsys, "--draft-tokens", "1-6", "--batch", "1,8,32", "--adaptive-config", str(path), "-q")
    ladder = json.loads(path.read_text())
    assert code == 0
    assert list(ladder) == ["1", "8", "32"]
    for entry in ladder.values():
        assert entry["candidate_steps"] == sorted(set(entry["candidate_steps"]))
        assert all(isinstance(n, int) and 0 <= n <= 5 for n in entry["candidate_steps"])


def test_no_ladder_is_written_without_an_acceptance(capsys, tmp_path):
    path = tmp_path / "adaptive.json"
    arguments = ("--draft-tokens", "1-3", "--model", "qwen3-30b-a3b", "--topology", "h200-x2", "--ranks", "2")
    code, _, err = invoke(capsys, *arguments, "--adaptive-config", str(path))
    assert code == 3
    assert not path.exists()
    assert "--accept-length" in err


def test_no_color_leaves_no_escape_sequence_on_a_terminal(capsys, monkeypatch):
    """Bold and faint are no colours to rich, but they are to who asked for plain text."""
    for name, value in (("TERM", "xterm-256color"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    code, out, err = invoke(capsys, "--draft-tokens", "3")
    assert code == 0
    assert "\x1b" not in out + err


def test_the_columns_of_the_table_add_up_to_what_they_say(capsys):
    """comm + compute + overhead = verify and verify + draft+host = cycle, to the last printed digit."""
    code, out, _ = invoke(capsys, "--draft-tokens", "1-4", "--batch", "1,4")
    lines = out.splitlines()
    assert code == 0
    heading = next(line for line in lines if line.startswith("batch"))
    assert "draft+host" in heading
    rows = [re.sub(r" \[[^\]]*\]", "", line).split() for line in lines if re.match(r" +\d+ +\d+ ", line)]
    assert len(rows) == 8
    for _, _, comm, compute, overhead, verify, draft_and_host, cycle, *_ in rows:
        parts = [0.0 if cell == "-" else float(cell) for cell in (comm, compute, overhead)]
        assert float(verify) == pytest.approx(sum(parts), abs=0.016)
        extra = 0.0 if draft_and_host == "-" else float(draft_and_host)
        assert float(cycle) == pytest.approx(float(verify) + extra, abs=0.011)


@pytest.mark.parametrize(
    ("decode_ms", "cycle_ms", "says"),
    [
        (20.0, 8.0, "pays at any acceptance;"),
        (4.0, 80.0, "and 3 is the most there can be"),
        (4.0, 6.0, "pays from an accept length of 1."),
    ],
)
def test_a_break_even_is_an_accept_length_that_there_can_be(capsys, tmp_path, decode_ms, cycle_ms, says):
    """A verify emits 1 to 3 tokens at 3 draft tokens, whatever noisy points make of the times."""
    points = [Point(phase="decode", batch_size=1, time_ms=decode_ms), Point(phase="cycle", batch_size=1, draft_tokens=3, time_ms=cycle_ms)]  # fmt: skip
    profile = str(tmp_path / "p.json")
    api.calibrate("qwen3-30b-a3b", points, topology="h200-x2", output=profile)
    _, out, _ = invoke(capsys, "--draft-tokens", "3", "--profile", profile)
    assert says in out
    _, out, _ = invoke(capsys, "--draft-tokens", "3", "--profile", profile, "--json")
    even = json.loads(out)["rows"][-1]["break_even_accept_length"]
    assert 1 <= even["low"] <= even["value"] <= even["high"]
