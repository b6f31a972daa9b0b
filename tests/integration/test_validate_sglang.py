"""The whole path of ``validate sglang`` over a local process that answers, logs and fails as SGLang does."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from emit_runs import entry, make_fit, make_machine, make_run
from fake_sglang_server import step_ms

from nccltune import api
from nccltune.errors import InputError, QualityError
from nccltune.schemas.validation_record import ArmRecord, ServerRecord
from nccltune.validation.points import gate
from nccltune.validation.records import Folder, load_validation
from nccltune.validation.request import LiveRequest
from nccltune.validation.servers import diagnose, free_port, port_is_free

FAKE = Path(__file__).parent.parent / "fakes" / "fake_sglang_server.py"
LL, SIMPLE = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}, {"NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring"}


@pytest.fixture
def run(tmp_path):
    settings = [entry({}, [40, 55, 120]), entry(LL, [25, 28, 70]), entry(SIMPLE, [50, 70, 150])]
    machine = make_machine().model_copy(update={"topology": "rtx-pro-6000-x8"})
    return make_run(tmp_path / "run", make_fit(settings, best="LL Ring"), machine=machine)


@pytest.fixture(autouse=True)
def nothing_runs():
    """No server may outlive its test."""
    yield
    assert servers() == []


def servers():
    """Running stand-ins."""
    return [p for p in psutil.process_iter(["cmdline"]) if str(FAKE) in " ".join(p.info["cmdline"] or [])]


def request(run, mode="", **changes):
    env = {"FAKE_SGLANG_SPEED": "10", **({"FAKE_SGLANG_MODE": mode} if mode else {}), **changes.pop("env", {})}
    fields = {
        "model_path": "/models/target", "draft_model_path": "/models/draft", "model": "kimi-k2.5", "run": str(run), "settings": ["base"],
        "draft_tokens": [1], "batch": [1], "output_tokens": 64, "context": 96, "repeats": 1, "launch": f"{sys.executable} {FAKE}", "env": env,
        "ready_limit_s": 20, "stall_s": 5,
    }  # fmt: skip
    return LiveRequest(**{**fields, **changes})


def measure(tmp_path, asked, **options):
    lines = []
    found, folder = api.validate_sglang(
        asked, output=tmp_path / "out", on_progress=lambda p: lines.append(p.text), **options
    )
    return found, Folder(folder), lines


def failed(tmp_path, asked):
    with pytest.raises(QualityError, match="no arm was measured") as caught:
        measure(tmp_path, asked)
    folder = Folder(tmp_path / "out")
    (server,) = folder.servers()
    (arm,) = folder.arms().values()
    assert (server.status, arm.status) == ("failed", "failed")
    assert server.cleanup is None or server.cleanup.is_clean
    return server, arm, caught.value


def test_every_arm_is_measured_by_the_servers_own_clock(tmp_path, run):
    asked = request(run, settings=["base", "best", "Simple Ring"], draft_tokens=[1, 3], batch=[1, 4], extra_args="--skip-tokenizer-init",
                    load_format="dummy", simulate_accept_length=2, nccl_all_reduce=True, calibrate=["base:1:1", "base:1:3"])  # fmt: skip
    found, folder, lines = measure(tmp_path, asked)
    arms = folder.arms()
    assert len(arms) == 12
    assert all(arm.status == "ok" for arm in arms.values())
    for arm in arms.values():
        proto = arm.setting.env.get("NCCL_PROTO", "")
        assert arm.time_ms.value == pytest.approx(step_ms(arm.draft_tokens, arm.batch_size, proto))
        assert arm.timing.startswith("server")
        assert arm.context_tokens == 96  # 64 of prompt, half of 64
        assert arm.engine == "SGLang 0.5.14"
        # the fake sleeps ten times shorter than it says, and that does not go unseen
        assert any("client's clock" in text for text in arm.warnings)
    drafted = next(a for a in arms.values() if a.draft_tokens == 3 and a.batch_size == 4)
    assert drafted.accept_length == 2
    assert set(drafted.accept_lengths) == {
        "requests",
        "server info, since start",
        "metrics, last interval",
        "log, mean of decode lines",
    }
    servers = {s.server_id: s for s in folder.servers()}
    assert len(servers) == 6
    for server in servers.values():
        assert server.cleanup.is_clean
        assert server.all_reduce["path"] == "nccl"
    simple = servers["NCCL_ALGO=Ring; NCCL_PROTO=Simple | D=3"]
    assert simple.env["NCCL_PROTO"] == "allreduce:Simple"
    assert simple.env["NCCL_NVLS_ENABLE"] == "0"
    assert simple.acceptance.startswith("simulated")
    assert "--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3" in " ".join(
        simple.argv
    )
    assert "--speculative-algorithm" not in servers["base | D=1"].argv
    assert (found.summary.num_scored, found.summary.num_used_for_calibration) == (10, 2)
    assert any(r.slower.name == "Simple Ring" for r in found.rankings)
    assert found.regrets
    assert any(text.startswith("acceptance simulated") for text in found.warnings)
    assert load_validation(folder.path) == found
    assert any("first token after" in line for line in lines)


def test_the_clients_clock_stands_in_where_the_server_records_nothing(tmp_path, run):
    asked = request(run, env={"FAKE_SGLANG_SPEED": "1", "SGLANG_RECORD_STEP_TIME": "0"}, draft_tokens=[1, 3])
    _, folder, _ = measure(tmp_path, asked)
    for arm in folder.arms().values():
        assert arm.timing.startswith("client")
        # a sleep is never short; how long it is over depends on the machine
        exact = step_ms(arm.draft_tokens, 1, "")
        assert exact <= arm.time_ms.value < 1.5 * exact
        assert any("recorded no step times" in text for text in arm.warnings)


def test_the_baseline_is_always_measured(tmp_path, run):
    _, folder, _ = measure(tmp_path, request(run, settings=["best"], draft_tokens=[3]))
    assert [s.server_id for s in folder.servers()] == ["base | D=1", "NCCL_ALGO=Ring; NCCL_PROTO=LL | D=3"]


def test_inherited_nccl_variables_do_not_reach_the_server(tmp_path, run, monkeypatch):
    monkeypatch.setenv("NCCL_PROTO", "Simple")
    _, folder, _ = measure(tmp_path, request(run))
    (server,) = folder.servers()
    assert server.dropped_env == ["NCCL_PROTO"]
    assert "NCCL_PROTO" not in server.env
    (arm,) = folder.arms().values()
    assert arm.time_ms.value == pytest.approx(step_ms(1, 1, ""))


def test_a_trace_confirms_count_and_kernels_and_gives_the_verify_time(tmp_path, run):
    found, folder, _ = measure(tmp_path, request(run, draft_tokens=[3], profile_steps=4))
    arm = next(a for a in folder.arms().values() if a.draft_tokens == 3)
    assert arm.trace["target"]["allreduces_per_forward"] == 97
    assert arm.trace["methods"] == ["nccl"]
    assert arm.trace["target"]["allreduce_us"] == pytest.approx(97 * 8)
    assert arm.verify_ms.value == pytest.approx(97 * 13 / 1e3)
    assert {a.phase for a in found.arms} == {"decode", "cycle", "verify"}


def test_custom_all_reduce_left_on_says_that_settings_do_not_matter(tmp_path):
    machine = make_machine(link="NV18", num_gpus=2).model_copy(update={"topology": "h200-x2"})
    fit = make_fit([entry({}, [10, 11, 13])], num_ranks=2)
    run = make_run(tmp_path / "run", fit, machine=machine)
    found, folder, _ = measure(tmp_path, request(run, model="llama-3.1-8b"))
    assert folder.servers()[0].all_reduce["path"] == "custom"
    assert any("NCCL settings do not matter" in text for text in found.warnings)


def test_a_validation_feeds_calibrate(tmp_path, run):
    _, folder, _ = measure(tmp_path, request(run, draft_tokens=[1, 3], extra_args="--skip-tokenizer-init"))
    profile = api.calibrate("kimi-k2.5", folder.path, run=run)
    assert [(p.point.phase, p.context_tokens) for p in profile.points] == [("decode", 96), ("cycle", 96)]
    assert [p.point.time_ms for p in profile.points] == pytest.approx([step_ms(1, 1, ""), step_ms(3, 1, "")])
    assert profile.engine == "SGLang 0.5.14"


def test_resume_measures_what_is_missing_and_keeps_the_rest(tmp_path, run):
    asked = request(run, mode="die_later", batch=[1])
    with pytest.raises(QualityError):
        measure(tmp_path, asked)
    out = tmp_path / "out"
    stored = json.loads((out / "request.json").read_text())
    stored["request"]["env"]["FAKE_SGLANG_MODE"] = ""
    stored["request"]["batch"] = [1, 2]
    (out / "request.json").write_text(json.dumps(stored))
    api.validate_sglang(resume=out)
    first = {a.arm_id: a.created_at for a in Folder(out).arms().values()}
    assert len(first) == 2
    num_servers = len(Folder(out).servers())
    found, _ = api.validate_sglang(resume=out)
    assert len(Folder(out).servers()) == num_servers  # nothing was left to do
    assert found.summary.num_scored == 2


def test_a_line_cut_by_a_crash_is_measured_again(tmp_path, run):
    measure(tmp_path, request(run))
    path = tmp_path / "out" / "records.jsonl"
    path.write_text(
        "".join(
            line[: len(line) // 2] if '"arm"' in line else line for line in path.read_text().splitlines(keepends=True)
        )
        + "\n"
    )
    assert Folder(tmp_path / "out").arms() == {}
    api.validate_sglang(resume=tmp_path / "out")
    assert len(Folder(tmp_path / "out").arms()) == 1


def test_a_finished_folder_is_never_overwritten(tmp_path, run):
    measure(tmp_path, request(run))
    with pytest.raises(InputError, match="already holds a validation"):
        measure(tmp_path, request(run))


def test_a_free_port_leaves_room_for_the_port_that_sglang_derives_from_it():
    """SGLang 0.5.14 ends with an error where its port + 10000 is no port; a client may hold an ephemeral one."""
    ports = {free_port() for _ in range(20)}
    assert len(ports) > 1
    assert max(ports) + 10_000 < 32_768
    with socket.socket() as held:
        held.bind(("127.0.0.1", free_port() + 10_000))
        taken = held.getsockname()[1] - 10_000
        assert taken not in {free_port() for _ in range(50)}


def test_a_held_port_is_a_record_and_nothing_is_started(tmp_path, run):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        server, arm, _ = failed(tmp_path, request(run, port=other.getsockname()[1]))
    assert (server.error.kind, arm.error.kind) == ("port_held", "port_held")
    assert server.cleanup is None


@pytest.mark.parametrize(
    ("mode", "kind", "says"),
    [
        ("crash", "crash", "head_dim 96"),
        ("out_of_memory", "out_of_memory", "Not enough memory"),
        ("nccl", "nccl", "NCCL error"),
        ("old_version", "wrong_version", "unrecognized arguments: --skip-server-warmup"),
        ("garbage", "garbage", "/generate streamed"),
        ("garbage_info", "garbage", "not JSON"),
        ("not_sglang", "wrong_version", "neither /server_info"),
        ("die_later", "out_of_memory", "CUDA out of memory"),
        ("error_events", "request_failed", "KV cache pool is full"),
    ],
)
def test_failures_are_records_with_their_cause(tmp_path, run, mode, kind, says):
    server, arm, error = failed_or_arm(tmp_path, request(run, mode))
    assert arm.error.kind == kind
    assert says in arm.error.message
    assert says in str(error)
    assert server.cleanup.port_free
    assert server.cleanup.num_processes_left == 0


def failed_or_arm(tmp_path, asked):
    with pytest.raises(QualityError, match="no arm was measured") as caught:
        measure(tmp_path, asked)
    folder = Folder(tmp_path / "out")
    return folder.servers()[0], next(iter(folder.arms().values())), caught.value


def test_a_server_with_another_width_is_not_measured(tmp_path, run):
    found, folder, _ = measure(tmp_path, request(run, mode="other_width", draft_tokens=[3]))
    errors = {a.draft_tokens: a.error for a in folder.arms().values()}
    assert errors[1] is None
    assert "runs with 4 draft tokens, not 3" in errors[3].message
    assert any("1 of 2 arms failed" in text for text in found.warnings)
    assert found.summary.num_not_measured == 1
    # a partial run is no success, however well the rest fits
    summary = found.summary.model_copy(update={"within_tolerance": True})
    with pytest.raises(QualityError, match="1 of 2 arms were not measured"):
        gate(found.model_copy(update={"summary": summary}))


def test_another_version_is_measured_and_said(tmp_path, run):
    found, _, _ = measure(tmp_path, request(run, mode="other_version"))
    assert any("SGLang 0.4.6: flags and fields were checked with 0.5.14" in text for text in found.warnings)


def test_a_slow_start_is_waited_for(tmp_path, run):
    _, folder, _ = measure(tmp_path, request(run, mode="slow_start"))
    assert folder.servers()[0].start_s > 1.5


@pytest.mark.parametrize("mode", ["never_ready", "hang"])
def test_a_server_that_never_generates_is_given_up_and_ended(tmp_path, run, mode):
    started = time.monotonic()
    server, arm, _ = failed(tmp_path, request(run, mode, ready_limit_s=2))
    assert arm.error.kind == "start_timeout"
    assert time.monotonic() - started < 20
    assert server.cleanup.is_clean


def test_a_hang_under_load_ends_the_server_and_the_next_one_runs(tmp_path, run):
    asked = request(run, mode="hang_later", stall_s=1, batch=[1, 2])
    with pytest.raises(QualityError):
        measure(tmp_path, asked)
    arms = list(Folder(tmp_path / "out").arms().values())
    assert [a.error.kind for a in arms] == ["hang", "hang"]


def test_a_server_that_ignores_the_polite_signal_is_killed(tmp_path, run, monkeypatch):
    monkeypatch.setattr("nccltune.validation.servers._POLITE_S", 0.5)
    _, folder, _ = measure(tmp_path, request(run, mode="ignores_sigterm"))
    cleanup = folder.servers()[0].cleanup
    assert (cleanup.killed, cleanup.num_processes_left, cleanup.port_free) == (True, 0, True)


def test_a_child_that_left_the_group_is_ended_too(tmp_path, run):
    pid_file = tmp_path / "pid"
    _, folder, _ = measure(tmp_path, request(run, mode="stray_child", env={"FAKE_SGLANG_PID_FILE": str(pid_file)}))
    assert folder.servers()[0].cleanup.num_processes_left == 0
    pid = int(pid_file.read_text())
    # Its parent is gone; who adopts it may not have collected it yet.
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_an_attached_server_is_measured_and_left_running(tmp_path, run):
    port = free_port()
    argv = [sys.executable, str(FAKE), "--host", "127.0.0.1", "--port", str(port), "--tp-size", "8", "--speculative-algorithm", "EAGLE3",
            "--speculative-num-draft-tokens", "3"]  # fmt: skip
    env = {**os.environ, "SGLANG_RECORD_STEP_TIME": "1", "FAKE_SGLANG_SPEED": "10"}
    other = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL)
    try:
        while port_is_free(port):
            time.sleep(0.05)
        found, folder, _ = measure(
            tmp_path, request(run, attach=f"http://127.0.0.1:{port}", settings=["best"], model_path="")
        )
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
    (arm,) = folder.arms().values()
    assert (arm.draft_tokens, arm.setting.name) == (3, "LL Ring")
    assert arm.time_ms.value == pytest.approx(step_ms(3, 1, ""))
    assert found.arms[0].phase == "cycle"
    assert any("it is taken to run 'LL Ring'" in text for text in found.warnings)
    assert found.summary.num_not_measured == 0


def test_an_arm_to_calibrate_on_must_be_measured(tmp_path, run):
    with pytest.raises(InputError, match=r"base \| D=3 \| batch=1, which is not measured"):
        measure(tmp_path, request(run, calibrate=["base:1:3"]))
    assert not (tmp_path / "out").exists()


def test_no_server_to_attach_to_is_an_input_error(tmp_path, run):
    with pytest.raises(InputError, match="no SGLang server answers"):
        measure(tmp_path, request(run, attach=f"http://127.0.0.1:{free_port()}"))
    assert not (tmp_path / "out").exists()


def interrupted(tmp_path, run, *numbers, mode="hang_later", ignored=None):
    """Send signals to the real command while its server hangs under the load, all but the last survived; return how it ended.

    ``ignored``: a signal that its shell had it ignore.
    """
    argv = [sys.executable, "-m", "nccltune", "validate", "sglang", "--model-path", "m", "--model", "kimi-k2.5", "--run", str(run), "--settings", "base",
            "--draft-tokens", "1", "--env", f"FAKE_SGLANG_MODE={mode}", "--launch", f"{sys.executable} {FAKE}", "-o", str(tmp_path / "out")]  # fmt: skip
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: ignored and signal.signal(ignored, signal.SIG_IGN),
    )  # fmt: skip
    log = tmp_path / "out" / "base_D=1.log"
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and "ready to roll" not in (log.read_text() if log.exists() else ""):
        time.sleep(0.1)
    for number in numbers:
        time.sleep(1.0)
        assert process.poll() is None
        process.send_signal(number)
    _, err = process.communicate(timeout=30)
    return process.returncode, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_the_server_and_says_how_to_go_on(tmp_path, run, number):
    code, err = interrupted(tmp_path, run, number)
    assert code == 130
    assert f"nccltune validate sglang --resume {tmp_path / 'out'}" in err
    (server,) = Folder(tmp_path / "out").servers()
    assert server.error.kind == "interrupted"
    assert server.cleanup.is_clean


def test_an_interrupt_is_heard_where_a_shell_started_the_command_with_it_ignored(tmp_path, run):
    code, _ = interrupted(tmp_path, run, signal.SIGINT, ignored=signal.SIGINT)
    assert code == 130


def test_under_nohup_a_hangup_changes_nothing(tmp_path, run):
    code, _ = interrupted(tmp_path, run, signal.SIGHUP, signal.SIGINT, ignored=signal.SIGHUP)
    assert code == 130


@pytest.mark.parametrize("mode", ["hang_later", "deaf"])
def test_a_command_that_is_killed_outright_takes_its_server_along(tmp_path, run, mode):
    """Also a server that ignores SIGTERM, whose child has left the group."""
    code, _ = interrupted(tmp_path, run, signal.SIGKILL, mode=mode)
    assert code == -signal.SIGKILL
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and servers():
        time.sleep(0.1)
    assert servers() == []


def test_records_read_back_as_they_were_written(tmp_path, run):
    _, folder, _ = measure(tmp_path, request(run))
    kinds = [type(record) for record in folder.records()]
    assert kinds == [ArmRecord, ServerRecord]


def test_a_real_start_log_does_not_hide_the_cause_of_a_crash():
    log = "[22:54:15 TP0] Ignore import error when loading sglang.srt.models.x: No module named 'flashinfer'\n"
    assert diagnose(log) is None
    assert (
        diagnose(log + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n").kind == "out_of_memory"
    )
    assert diagnose(log + "OSError: [Errno 98] Address already in use\n").kind == "port_held"
    grpc = "ValueError: SGLANG_GRPC_PORT (69061) must be between 1 and 65535\n"
    assert diagnose(log + grpc).kind == "usage"
    assert diagnose(log + "launch_server.py: error: unrecognized arguments: --moe-runner\n").kind == "wrong_version"


def test_the_command_prints_one_document_and_exits_with_the_verdict(tmp_path, run):
    argv = [sys.executable, "-m", "nccltune", "validate", "sglang", "--model-path", "m", "--model", "kimi-k2.5", "--run", str(run), "--settings", "base",
            "--draft-tokens", "1", "--batch", "1,2", "--output-tokens", "64", "--repeats", "1", "--env", "FAKE_SGLANG_SPEED=10",
            "--launch", f"{sys.executable} {FAKE}", "-o", str(tmp_path / "out"), "--json"]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    # the fake steps in 5 ms, the model of an 8-GPU machine predicts about 15
    assert done.returncode == 4
    document = json.loads(done.stdout)
    assert [(a["phase"], a["batch_size"]) for a in document["arms"]] == [("decode", 1), ("decode", 2)]
    assert document["servers"][0]["cleanup"]["port_free"] is True
    assert "[2/2]" in done.stderr
    assert "out of tolerance" in done.stderr
    argv = [
        sys.executable,
        "-m",
        "nccltune",
        "validate",
        "sglang",
        "--resume",
        str(tmp_path / "out"),
        "--tolerance",
        "500",
    ]
    again = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert again.returncode == 4
    assert "the stored request: --tolerance given here does not count" in again.stderr
