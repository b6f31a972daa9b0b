"""``nccltune check`` as a user calls it."""

import contextlib
import json
import os
import subprocess

import pytest

import nccltune.api
from nccltune.cli import _errors, cli


@pytest.fixture(autouse=True)
def _no_nccl_here(monkeypatch, tmp_path):
    for name in [n for n in os.environ if n.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def call(capsys, *args):
    code = _errors.run(cli, ["check", *map(str, args)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def env_file(tmp_path):
    path = tmp_path / "nccl.env"
    path.write_text("NCCL_PROTO=LL\nNCCL_P2P_LEVEL=SYS\n")
    return path


def test_clean_file(capsys, env_file):
    code, out, err = call(capsys, env_file)
    assert (code, err) == (0, "")
    assert "2 variables, 0 problems, 0 warnings" in out


def test_problems_have_place_cause_and_advice(capsys, env_file):
    env_file.write_text('NCCL_PROTO="LL"\nNCCL_PRTO=LL\n')
    code, out, _ = call(capsys, env_file, "--format", "docker")
    assert code == 3
    assert f'{env_file}:1: problem: NCCL_PROTO: docker keeps the quotes: the value is "LL" [write NCCL_PROTO=LL]' in out
    assert "did you mean NCCL_PROTO?" in out


def test_json(capsys, env_file):
    env_file.write_text("NCCL_ALGO=allreduce:tree\n")
    code, out, _ = call(capsys, env_file, "--json", "--nccl-version", "2.31.2")
    body = json.loads(out)
    assert code == 3
    assert body["schema"] == "nccltune.check"
    assert body["num_problems"] == 1
    assert body["findings"][0]["variable"] == "NCCL_ALGO"
    assert body["findings"][0]["line"] == 1


def test_emitted_files_pass(capsys, tmp_path):
    for form in ("shell", "docker", "compose", "systemd", "k8s", "slurm", "nccl-conf", "json"):
        for version in ("2.20.5", "2.28.9", "2.31.2"):
            path = tmp_path / f"{form}-{version}"
            nccltune.api.emit(setting="NCCL_ALGO=Ring;NCCL_PROTO=LL", format=form, nccl_version=version, output=path)
            code, out, _ = call(capsys, path)
            assert code == 0, out
            assert f"read as {form}:" in out


@pytest.mark.parametrize("content", [None, b"\xff\xfeA\0", b"NCCL_PROTO=\xff"])
def test_unreadable(capsys, tmp_path, content):
    path = tmp_path / "x"
    if content is not None:
        path.write_bytes(content)
    code, out, err = call(capsys, path)
    assert (code, out) == (2, "")
    assert "do:" in err


def test_empty_file_is_a_warning(capsys, tmp_path):
    path = tmp_path / "x"
    path.write_text("")
    code, out, _ = call(capsys, path)
    assert code == 0
    assert "sets no variable" in out


@contextlib.contextmanager
def sleeping(env):
    """A process with this environment, ended afterwards."""
    with subprocess.Popen(["/bin/sleep", "60"], env=env) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def test_a_process_without_an_environment_is_not_compared(capsys, env_file):
    with sleeping({}) as pid:
        code, _, err = call(capsys, env_file, "--running", pid)
    assert code == 2
    assert "shows no environment" in err


def test_running_process(capsys, env_file):
    secret = {"PATH": os.environ["PATH"], "NCCL_PROTO": "Simple", "NCCL_NTHREADS": "512", "TOKEN": "s3cret"}
    with sleeping(secret) as pid:
        code, out, _ = call(capsys, env_file, "--running", pid)
    assert code == 3
    assert "runs with NCCL_PROTO=Simple, the file says LL" in out
    assert "started without NCCL_P2P_LEVEL" in out
    assert "also has NCCL_NTHREADS=512" in out
    assert "s3cret" not in out
    assert call(capsys, env_file, "--running", pid)[0] == 2


def test_this_environment_and_conf_files_are_compared(capsys, env_file, monkeypatch, tmp_path):
    monkeypatch.setenv("NCCL_PROTO", "Simple")
    (tmp_path / ".nccl.conf").write_text("NCCL_P2P_LEVEL=PIX\n")
    code, out, _ = call(capsys, env_file, "--format", "docker")
    assert code == 0
    assert "this environment has Simple, the file says LL" in out
    assert "an nccl.conf file says PIX" in out


def test_a_list_cut_at_its_semicolon_runs_as_a_command(capsys, tmp_path):
    path = tmp_path / "nccl.env"
    path.write_text("export NCCL_ALGO=ring;tree\nexport NCCL_PROTO=LL; echo set\n")
    code, out, err = call(capsys, path)
    assert code == 3
    assert (out + err).count("unquoted ;") == 1


def test_channel_counts_below_the_least(capsys, tmp_path):
    path = tmp_path / "nccl.env"
    path.write_text("export NCCL_MAX_NCHANNELS=0\nexport NCCL_MIN_NCHANNELS=-3\n")
    code, out, err = call(capsys, path)
    assert code == 3
    assert "NCCL takes it for 1" in out + err
    assert "NCCL takes it for 0" in out + err
