"""Each format read back by its real consumer where one is here, otherwise by the parser that follows its rules."""

import http.server
import importlib.util
import json
import os
import shutil
import socketserver
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nccltune.emit import formats
from nccltune.emit.document import Document, Variable
from nccltune.errors import InputError

NASTY = {
    "NCCL_PROTO": "^LL128;allreduce:LL128",
    "NCCL_ALGO": "ring,collnetdirect;allreduce:tree,collnetdirect",
    "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
    "NCCL_A": "a # b",
    "NCCL_B": "two  words",
    "NCCL_C": 'say "hi"',
    "NCCL_D": "back\\slash",
    "NCCL_E": "$HOME ${PATH} `id` $(id)",
    "NCCL_F": "0",
    "NCCL_G": "#start",
    "NCCL_H": "it's",
    "NCCL_I": "~/x*?[a]!&|<>(){}",
    "NCCL_J": "100%",
}
LINE_FORMATS = ("shell", "docker", "compose", "systemd", "k8s", "slurm", "nccl-conf", "json")
# Anything one could type on one line; what a format cannot carry must be refused, never changed.
VALUES = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=40)


def document(env):
    return Document(
        variables=tuple(Variable(name, value, "a comment \\") for name, value in env.items()),
        header=("header $HOME `id` \\", "second"),
        warnings=("careful: #1",),
    )


@pytest.mark.parametrize("name", LINE_FORMATS)
def test_own_parser_reads_back_nasty_values(name):
    module = formats.get(name)
    assert module.parse(module.write(document(NASTY))) == NASTY


@pytest.mark.parametrize("name", LINE_FORMATS)
@given(value=VALUES)
def test_any_value_survives_or_is_refused(name, value):
    module = formats.get(name)
    try:
        text = module.write(document({"NCCL_X": value}))
    except InputError:
        return
    assert module.parse(text) == {"NCCL_X": value}


@pytest.mark.parametrize("name", LINE_FORMATS)
def test_text_is_lf_only_ends_with_newline_and_no_line_ends_in_a_backslash(name):
    text = formats.get(name).write(document({**NASTY, "NCCL_Z": "tab\there"}))
    assert "\r" not in text
    assert text.endswith("\n")
    assert not any(line.endswith("\\") for line in text.splitlines())


@pytest.mark.parametrize("name", LINE_FORMATS)
@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b", "a\x1bb", "\udc80"])
def test_control_characters_are_refused(name, value):
    with pytest.raises(InputError, match="NCCL_X"):
        formats.get(name).write(document({"NCCL_X": value}))


def test_what_single_formats_cannot_carry_is_refused():
    for name in ("docker", "nccl-conf", "compose"):
        with pytest.raises(InputError, match="backslash"):
            formats.get(name).write(document({"NCCL_X": "a\\"}))
    with pytest.raises(InputError, match="1023"):
        formats.get("nccl-conf").write(document({"NCCL_X": "a" * 1024}))
    assert formats.get("nccl-conf").parse(formats.get("nccl-conf").write(document({"NCCL_X": "a" * 1023}))) == {
        "NCCL_X": "a" * 1023
    }
    with pytest.raises(InputError, match="variable name"):
        formats.get("shell").write(document({"NCCL X": "a"}))


def sourced(tmp_path, text, shell):
    path = tmp_path / "nccl.env"
    path.write_text(text, encoding="utf-8")
    out = subprocess.run(
        ["env", "-i", "PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", f"FILE={path}", shell, "-c", 'set -eu; . "$FILE"; env -0'],
        capture_output=True, check=True,
    ).stdout  # fmt: skip
    pairs = [item.partition(b"=") for item in out.split(b"\0") if item.startswith(b"NCCL_")]
    return {name.decode(): value.decode() for name, _, value in pairs}


@pytest.mark.parametrize("shell", ["bash", "sh", "dash"])
@pytest.mark.parametrize("name", ["shell", "slurm"])
def test_shells_read_it_back(tmp_path, shell, name):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert sourced(tmp_path, formats.get(name).write(document(NASTY)), shell) == NASTY


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(VALUES, min_size=1, max_size=20))
def test_bash_reads_any_value_back(tmp_path, values):
    env = {f"NCCL_V{i}": value for i, value in enumerate(values)}
    assert sourced(tmp_path, formats.get("shell").write(document(env)), "bash") == env


def test_slurm_script_hands_the_variables_to_srun(tmp_path):
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\n[ "$1" = --export=ALL ] || exit 9\nshift\nexec "$@"\n')
    srun.chmod(0o755)
    script = tmp_path / "job.sbatch"
    script.write_text(formats.get("slurm").write(document(NASTY)))
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    out = subprocess.run(["bash", str(script), "env", "-0"], capture_output=True, check=True, env=env).stdout
    assert b"NCCL_PROTO=^LL128;allreduce:LL128\0" in out
    assert subprocess.run(["bash", str(script)], env=env, check=True).returncode == 0  # nothing to launch: nothing done


def condition(path, name, value):
    """Ask systemd's own parser whether ``name`` has ``value``: os-release and EnvironmentFile= share it (env-file.c)."""
    quoted = "".join(f"\\{c}" if c in "\\\"' \t" else c for c in value).replace("%", "%%")
    run = subprocess.run(
        ["systemd-analyze", "condition", f"ConditionOSRelease={name}={quoted}"],
        env={**os.environ, "SYSTEMD_OS_RELEASE": str(path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "Failed to" in run.stderr and "condition" not in run.stderr.lower():
        pytest.skip(f"systemd-analyze condition does not work here: {run.stderr.strip()}")
    return run.returncode == 0


def test_systemd_reads_it_back(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    path = tmp_path / "nccl.env"
    path.write_text(formats.get("systemd").write(document(NASTY)))
    probe = tmp_path / "probe"
    probe.write_text("ID=yes\n")
    if not condition(probe, "ID", "yes"):
        pytest.skip("this systemd-analyze has no ConditionOSRelease")
    for name, value in NASTY.items():
        assert condition(path, name, value), name
        assert not condition(path, name, value + "x"), name


class _Daemon(http.server.BaseHTTPRequestHandler):
    """As much of a docker daemon as 'docker create' talks to; keeps the Env of the request."""

    seen: list = []  # noqa: RUF012

    def _answer(self, code, body):
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Api-Version", "1.43")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_HEAD(self):
        self._answer(200, {})

    def do_GET(self):
        self._answer(200, {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append(body["Env"])
        self._answer(201, {"Id": "0" * 64, "Warnings": []})

    def log_message(self, *args):
        pass

    def address_string(self):
        return "unix"


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def test_docker_reads_it_back(tmp_path):
    if shutil.which("docker") is None:
        pytest.skip("the docker command line is not installed")
    path = tmp_path / "nccl.env"
    path.write_text(formats.get("docker").write(document(NASTY)))
    socket = tmp_path / "d.sock"
    with _Server(str(socket), _Daemon) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        run = subprocess.run(
            ["docker", "create", "--pull=never", "--env-file", str(path), "image"], capture_output=True, text=True, timeout=30, check=False,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DOCKER_HOST": f"unix://{socket}"},
        )  # fmt: skip
        server.shutdown()
    assert run.returncode == 0, run.stderr
    assert dict(item.split("=", 1) for item in _Daemon.seen[-1]) == NASTY


def test_compose_reads_it_back(tmp_path):
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode
    ):
        pytest.skip("docker compose is not installed")
    (tmp_path / "nccl.env").write_text(formats.get("compose").write(document(NASTY)))
    (tmp_path / "compose.yaml").write_text("services:\n  s:\n    image: i\n    env_file: nccl.env\n")
    run = subprocess.run(
        ["docker", "compose", "config", "--format", "json"], cwd=tmp_path, capture_output=True, check=True
    )
    # 'config' prints a literal dollar as $$, ready to be read again.
    found = json.loads(run.stdout)["services"]["s"]["environment"]
    assert {name: value.replace("$$", "$") for name, value in found.items()} == NASTY


def test_yaml_reads_it_back():
    manifest = yaml.safe_load(formats.get("k8s").write(document(NASTY)))
    assert manifest["kind"] == "ConfigMap"
    assert manifest["data"] == NASTY
    assert yaml.safe_load(formats.get("k8s").write(Document()))["data"] == {}


@given(value=VALUES)
def test_yaml_reads_any_value_back(value):
    assert yaml.safe_load(formats.get("k8s").write(document({"NCCL_X": value})))["data"] == {"NCCL_X": value}


def test_kubectl_reads_it_back(tmp_path):
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    path = tmp_path / "cm.yaml"
    path.write_text(formats.get("k8s").write(document(NASTY)))
    run = subprocess.run(
        ["kubectl", "label", "--local", "-f", str(path), "-o", "json", "a=b"], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "KUBECONFIG": os.devnull},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["data"] == NASTY


def libnccl():
    """Path of an installed libnccl.so.2 (the wheel that CUDA builds of torch bring), or None."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or [] if spec is not None else []:
        for path in Path(folder).glob("nccl/lib/libnccl.so.2"):
            return path
    return None


def test_nccl_reads_its_own_file_back(tmp_path):
    if (library := libnccl()) is None:
        pytest.skip("no libnccl is installed here")
    path = tmp_path / "nccl.conf"
    path.write_text(formats.get("nccl-conf").write(document(NASTY)))
    code = (
        "import ctypes, json, sys; lib = ctypes.CDLL(sys.argv[1]); lib.ncclGetUniqueId(ctypes.create_string_buffer(128)); "
        "c = ctypes.CDLL(None); c.getenv.restype = ctypes.c_char_p; "
        "print(json.dumps({n: (c.getenv(n.encode()) or b'').decode() for n in sys.argv[2:]}))"
    )
    env = {"PATH": os.environ["PATH"], "NCCL_CONF_FILE": str(path)}
    run = subprocess.run(
        [sys.executable, "-c", code, str(library), *NASTY], env=env, capture_output=True, check=True, timeout=60
    )
    assert json.loads(run.stdout.splitlines()[-1]) == NASTY
