"""What ``fit`` prints of the methods beside NCCL, and what --beside does where there is no GPU."""

import json

import pytest

from nccltune import stats
from nccltune.cli import _beside, _errors, cli
from nccltune.methods import METHODS
from nccltune.schemas.fit import BesideFit, Fit, VersusBase
from nccltune.schemas.machine import Machine
from nccltune.schemas.measurement import Failure, Measurement
from nccltune.schemas.run import Manifest
from nccltune.schemas.setting import BASE, Setting
from nccltune.store import Run

SIZES = [14336 * t for t in (1, 2, 4)]
MACHINE = Machine(
    hostname_hash="0badc0de", os="Linux", kernel="6", python="3.11", cpu_model="cpu", num_cpus=2, memory_bytes=1
)


def case(setting, size, time_us, **fields):
    samples = [time_us * f for f in (0.998, 1.0, 1.002)] if time_us else []
    values = {
        "case_id": f"{setting.name}-{size}", "setting": setting, "size_bytes": size, "count": size // 2, "timing": "in-forward",
        "num_ranks": 2, "dtype": "bfloat16", "base": "sglang", "backend": "nccl", "status": "ok", "samples_us": samples,
        "stats": stats.summarize(samples).to_dict() if samples else None,
    }  # fmt: skip
    return Measurement.model_validate({**values, **fields})


@pytest.fixture
def run(tmp_path):
    manifest = Manifest(
        nccltune_version="0", created_at="2026-11-01T00:00:00+00:00", command=["nccltune", "scan"], run_id="r", backend="nccl", base="sglang",
        base_env={}, num_ranks=2, dtype="bfloat16", model="kimi-k2.5", tokens=[1, 2, 4], size_bytes=SIZES, timings=["in-forward"],
        settings=[BASE], plan_id="0", machine=MACHINE, status="complete",
    )  # fmt: skip
    made = Run.create(tmp_path / "run", manifest)
    made.append([case(BASE, size, 10.0) for size in SIZES])
    return made


def add(run, method, time_us, **fields):
    label = next(m.label for m in METHODS if m.name == method)
    run.append([case(Setting(name=label), size, time_us, method=method, **fields) for size in SIZES])


def test_rows_and_the_line_that_says_who_wins(run, capsys):
    add(run, "sglang-custom-v2", 4.0)
    error = Failure(kind="no_algorithm", message="sgl_kernel is not installed")
    add(run, "sglang-custom-v1", None, status="unsupported", error=error)
    assert _errors.run(cli, ["fit", str(run.path)]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    at = next(i for i, text in enumerate(lines) if text.startswith("beside NCCL:"))
    assert lines[at + 1].startswith("  SGLang custom all-reduce v2")
    # 123 x 4 us in one forward, against 123 x 10 us of the base.
    assert "492" in lines[at + 1]
    assert "-60.0%" in lines[at + 1]
    assert "sgl_kernel is not installed" in lines[at + 2]
    assert "beside NCCL: SGLang custom all-reduce v2 beats NCCL's base at decode sizes (-60.0%" in out
    assert "only where the engine's own all-reduce is off (SGLang: --disable-custom-all-reduce" in out
    assert "beside NCCL, not measured: SGLang custom all-reduce v1: sgl_kernel is not installed" in out


def test_json_keeps_them_apart_from_the_settings(run, capsys):
    add(run, "sglang-custom-v2", 4.0)
    assert _errors.run(cli, ["fit", str(run.path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [s["setting"]["name"] for s in document["settings"]] == ["base"]
    assert [b["method"] for b in document["beside"]] == ["sglang-custom-v2"]
    assert document["best"] is None


def test_without_other_methods_nothing_is_said(run, capsys):
    assert _errors.run(cli, ["fit", str(run.path)]) == 0
    assert "beside" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("verdict", "percent", "text"),
    [
        ("faster", -20.0, "one beats the best NCCL setting (LL) at decode sizes (-20.0%"),
        ("unclear", -0.5, "the best NCCL setting (LL) and one are within noise at decode sizes"),
        (
            "slower",
            12.0,
            "the best NCCL setting (LL) beats every other method at decode sizes; the nearest is one (+12.0%",
        ),
    ],
)
def test_each_outcome_has_its_words(verdict, percent, text):
    versus = VersusBase(percent=percent, low_percent=percent - 2, high_percent=percent + 2, verdict=verdict)
    worse = versus.model_copy(update={"percent": percent + 10, "verdict": "slower"})
    beside = [
        BesideFit(method="b", label="two", timing="in-forward", usable=True, versus_best=worse),
        BesideFit(method="a", label="one", timing="in-forward", usable=True, versus_best=versus),
        BesideFit(method="c", label="three", timing="in-forward", usable=True),
    ]
    fit = Fit(
        nccltune_version="0", created_at="", command=[], run_id="r", machine="m", num_ranks=2, base="sglang", model=None,
        timing="in-forward", settings=[], best="LL", beside=beside,
    )  # fmt: skip
    [line] = _beside.summary(fit)
    assert text in line
    assert "NCCL setting" in line


def test_beside_is_said_to_be_left_out_where_the_back_end_cannot(capsys):
    arguments = ["scan", "--backend", "gloo", "--sizes", "1024", "--dry-run", "--json"]
    assert _errors.run(cli, [*arguments, "--beside"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["beside"] == []
    assert any(note.startswith("--beside: only the back end nccl") for note in document["notes"])
    assert _errors.run(cli, arguments) == 0
    assert not any("--beside" in note for note in json.loads(capsys.readouterr().out)["notes"])
