"""``nccltune fit`` as users run it: table, JSON, the written file, and errors with their exit codes."""

import json

import pytest

from nccltune import stats
from nccltune.cli import _errors, cli
from nccltune.schemas.machine import Machine
from nccltune.schemas.measurement import Choice, Failure, Measurement
from nccltune.schemas.run import Manifest
from nccltune.schemas.setting import BASE, Setting
from nccltune.store import Run

LL = Setting.make({"NCCL_PROTO": "LL"})
SIZES = [14336 * t for t in (1, 2, 4, 8)]
MACHINE = Machine(
    hostname_hash="0badc0de", os="Linux", kernel="6", python="3.11", cpu_model="cpu", num_cpus=2, memory_bytes=1
)


def case(setting, size, time_us, **fields):
    samples = [time_us * f for f in (0.998, 1.0, 1.002)] if time_us else []
    values = {
        "case_id": f"{setting.id}-{size}", "setting": setting, "size_bytes": size, "count": size // 2, "timing": "in-forward", "num_ranks": 8,
        "dtype": "bfloat16", "base": "sglang", "backend": "nccl", "status": "ok", "samples_us": samples,
        "choice": Choice(algo="Ring", proto="LL", num_channels=size // 14336), "stats": stats.summarize(samples).to_dict() if samples else None,
    }  # fmt: skip
    return Measurement.model_validate({**values, **fields})


@pytest.fixture
def run(tmp_path):
    manifest = Manifest(
        nccltune_version="0", created_at="2026-11-01T00:00:00+00:00", command=["nccltune", "scan"], run_id="r", backend="nccl", base="sglang",
        base_env={}, num_ranks=8, dtype="bfloat16", model="kimi-k2.5", tokens=[1, 2, 4, 8], size_bytes=SIZES, timings=["in-forward"],
        settings=[BASE, LL], plan_id="0", machine=MACHINE, status="complete",
    )  # fmt: skip
    made = Run.create(tmp_path / "run", manifest)
    made.append([case(s, size, (10 + 1e-4 * size) * f) for s, f in ((BASE, 1.0), (LL, 0.8)) for size in SIZES])
    return made


def invoke(*args):
    return _errors.run(cli, ["fit", *map(str, args)])


def test_table_names_the_best_and_the_file_is_written(run, capsys):
    assert invoke(run.path) == 0
    out, err = capsys.readouterr()
    first = out.splitlines()[0]
    assert "kimi-k2.5 forward" in first
    assert "in-forward" in first
    rows = [line.split() for line in out.splitlines() if line.startswith(("LL ", "base "))]
    assert [row[0] for row in rows] == ["LL", "base"]
    # 1 token, base: 123 x (10 + 1.4336) = 1406 us.
    assert "1406" in rows[1]
    assert "-20.0%" in rows[0]
    assert "Ring LL 1-8ch" in out
    assert "best: LL (-20.0%" in out
    assert "warning" in err
    assert run.load_fit().best == "LL"


def test_json_is_one_document_and_what_the_file_holds(run, capsys):
    assert invoke(run.path, "--json") == 0
    out, _ = capsys.readouterr()
    document = json.loads(out)
    assert document == json.loads((run.path / "fit.json").read_text())
    assert (document["schema"], document["best"], document["timing"]) == ("nccltune.fit", "LL", "in-forward")
    assert document["settings"][0]["forward_us"]["1"] == pytest.approx(0.8 * 123 * 11.4336)
    assert len(document["settings"][0]["forward_interval_us"]["1"]) == 2


def test_quiet_prints_no_warnings(run, capsys):
    assert invoke(run.path, "-q") == 0
    assert capsys.readouterr().err == ""


def test_long_tables_are_cut_without_losing_base_and_best(run, capsys):
    many = [Setting.make({"NCCL_MAX_NCHANNELS": str(n)}) for n in range(1, 41)]
    run.append([case(s, size, (10 + 1e-4 * size) * 0.9) for s in many for size in SIZES])
    assert invoke(run.path) == 0
    out = capsys.readouterr().out
    # LL and 19 others fill the 20 rows; the base, slower than all, is listed all the same, and 21 are left out.
    assert "... 21 more" in out
    assert any(line.startswith("base ") for line in out.splitlines())
    assert invoke(run.path, "-v") == 0
    assert "more" not in capsys.readouterr().out


def test_another_model_ranks_by_its_own_forward(run, capsys):
    assert invoke(run.path, "--model", "kimi-k2.5", "--timing", "in-forward", "--json") == 0
    assert json.loads(capsys.readouterr().out)["model"] == "kimi-k2.5"


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["--timing", "eager"], 2, "has no eager times"),
        (["--timing", "graph"], 2, "'graph' is not one of"),
        (["--model", "no-such-model"], 2, "no model is called 'no-such-model'"),
    ],
)
def test_wrong_usage_is_exit_code_2(run, capsys, args, code, text):
    assert invoke(run.path, *args) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert text in err
    assert "Traceback" not in err


def test_missing_folder_and_unusable_run(run, tmp_path, capsys):
    assert invoke(tmp_path / "nothing") == 2
    assert "not a run folder" in capsys.readouterr().err
    (run.path / "measurements.jsonl").write_text("")
    assert invoke(run.path) == 3
    assert "has no all-reduce times" in capsys.readouterr().err
    run.append([case(BASE, SIZES[0], None, status="error", error=Failure(kind="cuda", message="no device"))])
    assert invoke(run.path, "--json") == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "no device" in err


def test_help_has_an_example(capsys):
    assert invoke("--help") == 0
    assert "nccltune fit run" in capsys.readouterr().out
