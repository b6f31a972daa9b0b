"""``nccltune emit`` as a user calls it: streams, exit codes, files, refusals."""

import json
import subprocess
import sys

import pytest
from emit_runs import SET, entry, make_fit, make_machine, make_run, tuned_fit

import nccltune
from nccltune.cli import _errors, cli
from nccltune.emit import emission, formats


@pytest.fixture(autouse=True)
def no_nccl_of_this_environment(monkeypatch):
    """A torch with CUDA brings an NCCL here, which emit rightly compares with the measured one; not what is tested."""
    monkeypatch.setattr(emission, "nccl_at_hand", lambda: None)


def call(capsys, *args):
    code = _errors.run(cli, ["emit", *map(str, args)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", tuned_fit())


@pytest.mark.parametrize("form", [f for f in formats.ENV_NAMES])
def test_every_env_format_carries_the_minimal_set(capsys, run, form):
    code, out, err = call(capsys, "--run", run, "--format", form)
    assert (code, err) == (0, "")
    assert formats.get(form).parse(out) == {
        "NCCL_CUMEM_ENABLE": "0",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_ALGO": "allreduce:ring",
        "NCCL_PROTO": "allreduce:LL",
    }
    assert "r1" in out
    assert "2.28.9" in out
    assert "deadbeef" not in out


def test_header_says_where_it_comes_from_and_what_it_costs(capsys, run):
    _, out, _ = call(capsys, run)
    assert out.startswith("# nccltune emit --format shell (nccltune ")
    for text in (
        "# command: ",
        "# machine: 8x Test GPU, driver 590.1",
        "# measured: run r1 of 2026-11-29, NCCL 2.28.9, 8 ranks",
        "# at prefill: 0.0%",
        "# left out: NCCL_BUFFSIZE=16777216",
    ):
        assert text in out
    # without Ring 15/15/30 us against 10/10/20
    assert "# NCCL_ALGO: 33.3% faster" in out


def test_full_keeps_all(capsys, run):
    _, out, _ = call(capsys, run, "--full")
    assert "export NCCL_BUFFSIZE=16777216" in out
    assert "changes nothing beyond noise" in out


def test_forms_follow_the_nccl_version(capsys, run):
    code, out, err = call(capsys, run, "--format", "docker", "--nccl-version", "2.31.2")
    assert code == 0
    assert "NCCL_ALGO=ring,tree;allreduce:ring\n" in out
    assert "NCCL_PROTO=LL,Simple;allreduce:LL\n" in out
    assert "measured with NCCL 2.28.9, written for NCCL 2.31.2" in err
    assert "measured with NCCL 2.28.9, written for NCCL 2.31.2" in out
    _, out, err = call(capsys, run, "--format", "docker", "--nccl-version", "2.20.5")
    assert "\nNCCL_ALGO=Ring\n" in out
    assert "every collective" in err


def test_nothing_beat_the_base(capsys, tmp_path):
    run = make_run(tmp_path / "run", tuned_fit().model_copy(update={"best": None}))
    code, out, err = call(capsys, run)
    assert code == 0
    assert formats.get("shell").parse(out) == {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}
    assert "nothing beat the base" in out
    assert "nothing beat the base" in err


def test_prefill_cost_refuses_until_accepted(capsys, tmp_path):
    run = make_run(tmp_path / "run", tuned_fit(prefill=(100.0, 149.0)))
    code, out, err = call(capsys, run)
    assert (code, out) == (3, "")
    assert "49.0% slower" in err
    assert call(capsys, run, "--force")[0] == 0
    code, out, _ = call(capsys, run, "--objective", "decode")
    assert code == 0
    assert "# WARNING: prefill sizes pay for it" in out
    assert call(capsys, run, "--max-prefill-cost", "60")[0] == 0
    _, out, _ = call(capsys, run, "--objective", "both:0.5")
    assert "NCCL_PROTO" not in formats.get("shell").parse(out)


def test_forced_ll128_on_pcie_is_refused(capsys, tmp_path):
    settings = [entry({}, (20, 20, 40, 100)), entry({"NCCL_PROTO": "LL128"}, (10, 10, 20, 100), name="ll128")]
    run = make_run(tmp_path / "pcie", make_fit(settings, best="ll128"))
    code, out, err = call(capsys, run)
    assert (code, out) == (3, "")
    assert "LL128" in err
    assert call(capsys, run, "--force")[0] == 0
    nvlink = make_run(tmp_path / "nvlink", make_fit(settings, best="ll128"), machine=make_machine(link="NV18"))
    code, _, err = call(capsys, nvlink, "--disable-custom-all-reduce")
    assert (code, err) == (0, "")


def test_engine_path_is_a_warning_in_the_file(capsys, tmp_path):
    run = make_run(tmp_path / "run", tuned_fit(), machine=make_machine(link="NV18"))
    code, out, err = call(capsys, run)
    assert code == 0
    assert "not NCCL" in err
    assert "# WARNING: SGLang would carry" in out


def test_gloo_runs_emit_the_base_only(capsys, tmp_path):
    run = make_run(tmp_path / "run", tuned_fit(), backend="gloo", machine=make_machine(version=None))
    code, out, _ = call(capsys, run)
    assert code == 0
    assert set(formats.get("shell").parse(out)) == {"NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE"}
    assert call(capsys, run, "--setting", "tuned")[0] == 3


def test_shipped_setting_without_a_run(capsys):
    code, out, err = call(capsys, "--setting", "seed", "--format", "docker", "--nccl-version", "2.28.9")
    assert code == 0
    assert "not measured on this machine" in out
    assert "not measured on this machine" in err
    found = formats.get("docker").parse(out)
    assert found["NCCL_ALGO"] == "allreduce:ring"
    assert found["NCCL_BUFFSIZE"] == "16777216"


def test_variables_given_by_hand_survive(capsys):
    value = "^LL128;allreduce:LL,Simple"
    code, out, _ = call(capsys, "--setting", f"NCCL_PROTO={value}", "--nccl-version", "2.28.9")
    assert code == 0
    assert formats.get("shell").parse(out)["NCCL_PROTO"] == value


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ([], 2),
        (["--setting", "sed"], 2),
        (["--run", "/nonexistent"], 2),
        (["--setting", "seed", "--objective", "both:7"], 2),
        (["--setting", "seed", "--nccl-version", "latest"], 2),
        (["--setting", "seed", "--format", "xml"], 2),
        (["--setting", "seed", "--format", "tuner-csv"], 2),
        (["--setting", "seed", "-o", "/nonexistent/x.env"], 2),
        (["--format", "sglang-args"], 2),
        (["--format", "sglang-args", "--draft-tokens", "4", "--steps", "2"], 2),
        (["--setting", "seed", "--steps", "2"], 2),
        (["--setting", "NCCL_ALGO=Rong"], 2),
    ],
)
def test_wrong_usage(capsys, args, code):
    got, out, err = call(capsys, *args)
    assert (got, out) == (code, "")
    assert err.strip()
    assert "this is a bug" not in err


def test_run_without_a_fit_says_how_to_fit(capsys, run):
    (run / "fit.json").unlink()
    code, _, err = call(capsys, run)
    assert code == 2
    assert "nccltune fit" in err


def test_json_is_one_document(capsys, run):
    code, out, _ = call(capsys, run, "--json", "--format", "docker", "--draft-tokens", "4")
    body = json.loads(out)
    assert code == 0
    assert body["schema"] == "nccltune.emit"
    assert body["format"] == "docker"
    assert body["env"]["NCCL_PROTO"] == "allreduce:LL"
    assert body["speculation"] == {"num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4}
    assert formats.get("docker").parse(body["text"]) == body["env"]
    assert body["gain_at_decode"]["low"] < body["gain_at_decode"]["percent"] < body["gain_at_decode"]["high"]


def test_sglang_args(capsys, run):
    for args in (["--draft-tokens", "4"], [run, "--draft-tokens", "4"]):
        code, out, _ = call(capsys, *args, "--format", "sglang-args")
        assert code == 0
        assert out.split() == [
            "--speculative-algorithm",
            "EAGLE3",
            "--speculative-num-steps",
            "3",
            "--speculative-eagle-topk",
            "1",
            "--speculative-num-draft-tokens",
            "4",
        ]


def test_tuner_csv(capsys, run):
    code, out, err = call(capsys, run, "--format", "tuner-csv")
    assert code == 0
    assert "\nallreduce,0,24830,ring,ll,1,1,8\n" in out
    assert "not measured" in err


def test_output_file_is_replaced_only_when_ours(capsys, run, tmp_path):
    path = tmp_path / "nccl.env"
    assert call(capsys, run, "-o", path)[:2] == (0, "")
    first = path.read_text()
    assert call(capsys, run, "-o", path, "--full")[0] == 0
    assert path.read_text() != first
    path.write_text("export MINE=1\n")
    code, _, err = call(capsys, run, "-o", path)
    assert code == 2
    assert "not written by nccltune" in err
    assert path.read_text() == "export MINE=1\n"
    assert call(capsys, run, "-o", path, "--force")[0] == 0
    assert list(tmp_path.glob(".*.tmp")) == []


def test_dash_is_stdout(capsys, run):
    assert call(capsys, run, "-o", "-")[1].startswith("# nccltune emit")


def test_python_twin(run):
    emitted = nccltune.emit(run, format="docker", setting="NCCL_ALGO=Ring")
    assert formats.get("docker").parse(emitted.text)["NCCL_ALGO"] == "allreduce:ring"


def test_a_subset_without_a_curve_says_that_the_gain_is_of_the_whole(capsys, tmp_path):
    fit = make_fit([entry({}, (20, 20, 40, 100)), entry(SET, (10, 10, 20, 100), name="tuned")], best="tuned")
    _, out, _ = call(capsys, make_run(tmp_path / "run", fit))
    assert "exactly this set was not measured" in out
    assert "# NCCL_ALGO: not separately measured" in out


def test_help_is_light():
    code = "import sys; from nccltune.cli import emit, check; print([m for m in ('torch', 'pandas', 'scipy', 'numpy') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


@pytest.mark.parametrize("form", [f for f in formats.NAMES if f not in ("json", "sglang-args", "tuner-plugin")])
def test_check_finds_a_file_that_was_cut_at_a_line_end(capsys, run, tmp_path, form):
    path = tmp_path / "emitted"
    assert call(capsys, "--run", run, "--format", form, "-o", path)[0] == 0
    assert _errors.run(cli, ["check", str(path)]) == 0
    lines = path.read_text().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if "NCCL_" in line or "simple" in line)
    path.write_text("".join(lines[:last]))
    assert _errors.run(cli, ["check", str(path)]) == 3
    assert "it was cut" in "".join(capsys.readouterr())


def test_no_limit_is_no_number(capsys, run):
    code, out, err = call(capsys, "--run", run, "--max-prefill-cost", "nan")
    assert (code, out) == (2, "")
    assert "not a finite number" in err


def test_a_path_that_the_system_refuses_is_no_bug(capsys, run):
    code, out, err = call(capsys, "--run", run, "-o", "x" * 300)
    assert (code, out) == (1, "")
    assert "File name too long" in err
    assert "this is a bug" not in err
