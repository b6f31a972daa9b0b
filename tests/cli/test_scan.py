"""``nccltune scan`` as users run it: the plan, wrong flags, and one real gloo scan from end to end."""

import io
import json

import pytest
from rich.console import Console

from nccltune.bench.options import Event
from nccltune.cli import _errors, cli
from nccltune.cli._progress import ScanProgress
from nccltune.knobs import SEED
from nccltune.store import Run


def invoke(*args):
    return _errors.run(cli, ["scan", *map(str, args)])


def plan(capsys, *args):
    """The plan of a gloo scan as --json gives it."""
    assert invoke("--backend", "gloo", "--dry-run", "--json", *args) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(autouse=True)
def own_shell(monkeypatch, tmp_path):
    """No NCCL_* of the shell that runs the tests, and a folder of its own for default outputs."""
    import os

    for name in [name for name in os.environ if name.startswith(("NCCL_", "NCCLTUNE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_dry_run_counts_cases_and_says_what_is_dropped_and_why(capsys):
    args = ["--proto", "LL,LL128,Simple", "--algo", "Ring,NVLS,PAT", "--sizes", "14336,8M"]
    # 9 pairs: NVLS with LL and LL128 and every PAT fall away; Ring with three protocols, NVLS with Simple and the base stay.
    assert invoke("--backend", "gloo", "--dry-run", *args) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == "10 cases: 5 settings x 2 sizes x 1 timing (back-to-back)"
    assert "back end gloo, 2 ranks, base sglang (NCCL_CUMEM_ENABLE=0 NCCL_NVLS_ENABLE=0)" in lines
    assert "sizes: 14 KiB, 8 MiB" in lines
    assert "dropped 2: NVLS runs with Simple only" in lines
    assert "dropped 3: PAT does not do all-reduce" in lines
    assert "\x1b" not in out + err, "no colour when piped"


def test_dry_run_as_json(capsys):
    document = plan(
        capsys, "--proto", "LL,LL128", "--algo", "Ring,NVLS", "--sizes", "14336", "--timing", "all", "--ranks", "4"
    )
    assert (document["schema"], document["schema_version"]) == ("nccltune.plan", 1)
    assert [s["name"] for s in document["settings"]] == ["base", "LL Ring", "LL128 Ring"]
    assert document["dropped"] == [
        {"setting": f"{p} NVLS", "reason": "NVLS runs with Simple only"} for p in ("LL", "LL128")
    ]
    assert document["timings"] == ["in-forward", "back-to-back", "eager"]
    assert (document["num_ranks"], document["num_cases"]) == (4, 3 * 1 * 3)
    assert document["estimate_s"] > 0


def test_a_dry_run_says_whether_measurements_are_shared(capsys):
    for flags, words in (([], "share a measurement"), (["--no-dedup"], "are measured one by one (--no-dedup)")):
        assert invoke("--backend", "gloo", "--dry-run", "--sizes", "1K", *flags) == 0
        assert words in capsys.readouterr().out


def test_nothing_is_written_by_a_dry_run(tmp_path, capsys):
    assert invoke("--backend", "gloo", "--dry-run", "--sizes", "1K", "-o", tmp_path / "run") == 0
    assert list(tmp_path.iterdir()) == []


def test_tokens_are_messages_of_the_model(capsys):
    # Kimi-K2.5: hidden 7168 in bfloat16, 14336 bytes a token.
    assert plan(capsys, "--tokens", "1-3,16")["size_bytes"] == [14336, 28672, 43008, 229376]
    assert plan(capsys, "--tokens", "1", "--sizes", "64K")["size_bytes"] == [14336, 65536]


def test_settings_by_name_by_variables_and_from_this_shell(capsys, monkeypatch):
    def named(*args):
        return {s["name"]: s["env"] for s in plan(capsys, "--sizes", "1K", *args)["settings"]}

    assert named("--setting", "seed") == {"base": {}, "seed": SEED}
    env = {"NCCL_ALGO": "allreduce:ring", "NCCL_PROTO": "Simple"}
    assert list(named("--setting", "NCCL_PROTO=Simple;NCCL_ALGO=allreduce:ring").values()) == [{}, env]
    assert invoke("--backend", "gloo", "--dry-run", "--sizes", "1K", "--setting", "env") == 2
    assert "this shell has no NCCL_* variable beyond the base" in capsys.readouterr().err
    # What SGLang exports by itself is the base, and logging is no setting.
    for name, value in {"NCCL_PROTO": "LL", "NCCL_CUMEM_ENABLE": "0", "NCCL_DEBUG": "INFO"}.items():
        monkeypatch.setenv(name, value)
    assert named("--setting", "env") == {"base": {}, "env": {"NCCL_PROTO": "LL"}}


def test_axes_multiply_and_default_leaves_a_variable_unset(capsys):
    document = plan(
        capsys, "--sizes", "1K", "--channels", "default,4,8-9", "--buffsize", "4M", "--set", "NCCL_CGA_CLUSTER_SIZE=1,2", "--base-set", "NCCL_P2P_DISABLE=1"
    )  # fmt: skip
    envs = [s["env"] for s in document["settings"]]
    # 4 channel counts x 1 buffer x 2 cluster sizes, and the base.
    assert len(envs) == 9
    assert {e.get("NCCL_MIN_NCHANNELS") for e in envs[1:]} == {None, "4", "8", "9"}
    assert all(e.get("NCCL_MIN_NCHANNELS") == e.get("NCCL_MAX_NCHANNELS") for e in envs)
    assert {e["NCCL_BUFFSIZE"] for e in envs[1:]} == {"4194304"}
    assert document["base_env"]["NCCL_P2P_DISABLE"] == "1"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--proto", "XX"], "--proto XX: NCCL has no such name"),
        (["--sizes", "0"], "'0' is not a size"),
        (["--sizes", "3"], "not a whole number of bfloat16 elements"),
        (["--sizes", "1K", "--tokens", "3-1"], "'3-1' is not a usable range"),
        (["--ranks", "1"], "needs at least two ranks"),
        (["--ranks", "1000"], "--ranks 1000 is above"),
        (["--timing", "never"], "no timing is called 'never'"),
        (["--set", "PATH=1"], "is not NCCL_NAME=a,b"),
        (["--base-set", "NCCL_X"], "is not NCCL_NAME=value"),
        (["--setting", "sed"], "did you mean seed"),
        (["--channels", "0"], "'0' is not a usable range"),
        (["--proto", "LL,,Simple"], "has an empty entry"),
        (["--time-budget", "soon"], "'soon' is not a time"),
        (["--time-budget", "0"], "'0' is not a time"),
        (["--model", "nope"], "no model is called 'nope'"),
        (["--noise", "0"], "--noise"),
        (["--case-timeout", "0"], "--case-timeout"),
        (["--dtype", "int8"], "--dtype"),
        (["--bogus"], "--bogus"),
        (["--resume", "nowhere"], "nowhere is not a run folder"),
    ],
)
def test_wrong_flags_are_usage_errors_before_anything_runs(args, words, capsys, tmp_path):
    assert invoke("--backend", "gloo", "-o", tmp_path / "run", *args) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert (out, "Traceback" in err) == ("", False)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def no_gpu(monkeypatch):
    """A machine without GPUs, whatever runs the tests."""
    from nccltune.schemas.machine import Machine

    bare = Machine(
        hostname_hash="0", os="Linux", kernel="6", python="3.11", cpu_model="cpu", num_cpus=2, memory_bytes=1
    )
    monkeypatch.setattr("nccltune.probe.collect_machine", lambda: bare)


@pytest.mark.usefixtures("no_gpu")
def test_torch_without_gpus_is_gloo_and_says_so(capsys):
    assert invoke("--backend", "torch", "--tokens", "1", "--dry-run", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["backend"] == "gloo"
    assert "gloo between local CPU processes" in found["notes"][0]


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("backend", ["nccl", "nccl-tests"])
def test_a_machine_without_gpus_is_said_with_the_way_to_try_the_tool(backend, capsys):
    assert invoke("--backend", backend, "--dry-run") == 5
    assert "use --backend gloo to try the tool" in capsys.readouterr().err


def test_a_lost_terminal_silences_the_progress_and_not_the_scan():
    class Gone(io.StringIO):
        def write(self, text):
            raise OSError(5, "Input/output error")

    console = Console(file=Gone(), width=80)
    progress = ScanProgress(console)
    progress.draw(Event("note", "drift", 0, 4, 0.0))
    assert console.quiet
    progress.draw(Event("case", "base, 1024 B", 4, 4, 1.0))


@pytest.mark.slow
def test_a_gloo_scan_from_end_to_end(capsys, tmp_path):
    path = tmp_path / "run"
    assert (
        invoke(
            "--backend", "gloo", "--sizes", "1K,64K", "--setting", "seed", "--max-replays", "20", "--json", "-o", path
        )
        == 0
    )
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert (document["schema"], document["status"], document["backend"], document["num_ranks"]) == (
        "nccltune.scan",
        "complete",
        "gloo",
        2,
    )
    assert document["counts"] == {"ok": 2, "not_in_force": 2}
    assert document["quality_problem"] is None
    assert document["run"] == str(path)
    assert "[4/4] seed, 65536 B not_in_force" in err
    assert f"Run: {path}" in err
    run = Run.load(path)
    cases = {(m.setting.name, m.size_bytes): m for m in run.measurements() if not m.repeat}
    for size in (1024, 65536):
        base, seed = cases["base", size], cases["seed", size]
        assert (base.status, base.num_wrong, len(base.samples_us)) == ("ok", 0, 20)
        assert base.num_checked == 2 * size // 2, "two fresh patterns of bfloat16"
        assert base.stats["median"] == pytest.approx(
            sorted(base.samples_us)[9] / 2 + sorted(base.samples_us)[10] / 2, abs=1e-4
        )
        # Gloo does not read NCCL variables: the setting is recorded so, and never credited.
        assert (seed.status, seed.in_force, seed.samples_us, seed.same_as) == ("not_in_force", False, [], base.case_id)
    assert {m.repeat for m in run.measurements()} == {0, 1, 2}, "the base again at the end"
    fit = run.load_fit()
    assert fit.best in (None, "base")
    assert [f.setting.name for f in fit.settings if f.usable] == ["base"]
    assert "say nothing about NCCL on GPUs" in " ".join(fit.warnings)
    assert run.manifest.command[0]
    assert run.manifest.machine.torch_version


def test_a_misspelt_variable_is_named_before_anything_runs(capsys):
    notes = plan(capsys, "--tokens", "1", "--set", "NCCL_PRTO=LL")["notes"]
    assert notes == ["NCCL_PRTO is no variable this tool knows; did you mean NCCL_PROTO?"]
