"""What every command promises: help with examples, options with help, one JSON document, plain text when piped, light imports."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from emit_runs import DECODE, make_fit, make_run, tuned_fit

from nccltune import errors, registry, stats
from nccltune.cli import COMMANDS, _errors, _variables, cli
from nccltune.schemas.measurement import Measurement
from nccltune.schemas.setting import BASE, Setting

DATA = Path(__file__).resolve().parents[1] / "data"
PATHS = [(path, one) for name in COMMANDS for path, one in _variables.walk(_variables.load(name), (name,))]
LEAVES = [(path, one) for path, one in PATHS if not isinstance(one, click.Group)]


@pytest.fixture(autouse=True)
def nothing_of_the_user(tmp_path, monkeypatch):
    """No configuration, variable or file of whoever runs the tests."""
    for name in [n for n in os.environ if n.startswith("NCCLTUNE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def call(capsys, *args):
    code = _errors.run(cli, [*map(str, args)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def name_of(value):
    return " ".join(value) if isinstance(value, tuple) else None


@pytest.mark.parametrize(("path", "command"), PATHS, ids=name_of)
def test_every_command_has_help_with_an_example(capsys, path, command):
    code, out, _ = call(capsys, *path, "-h")
    assert code == 0
    assert out == call(capsys, *path, "--help")[1]
    assert out.startswith(f"Usage: nccltune {' '.join(path)}")
    prose, _, examples = (command.help or "").partition("\b\n")
    assert prose.strip().endswith("."), "one sentence at least"
    assert f"nccltune {path[0]}" in examples


@pytest.mark.parametrize(("path", "command"), PATHS, ids=name_of)
def test_every_option_says_what_it_is_for(path, command):
    silent = [option.opts for option in command.params if isinstance(option, click.Option) and not option.help]
    assert silent == []


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=name_of)
def test_every_command_that_answers_has_the_common_options(path, command):
    found = {name for option in command.params for name in option.opts}
    assert found >= {"--json", "-q", "--quiet", "-v", "--verbose", "--debug"}


def test_the_commands_are_listed_with_a_line_each(capsys):
    _, out, _ = call(capsys, "--help")
    listed = re.findall(r"^  (\w+)\s+\w", out.partition("Commands:")[2], re.MULTILINE)
    assert listed == list(COMMANDS)


def test_a_misspelt_command_or_option_is_answered_with_the_right_one(capsys):
    code, out, err = call(capsys, "scna")
    assert (code, out) == (errors.EXIT_USAGE, "")
    assert "'scan'" in err
    code, out, err = call(capsys, "scan", "--backendd", "gloo")
    assert (code, out) == (errors.EXIT_USAGE, "")
    assert "--backend" in err


def test_exit_codes_are_the_documented_ones(capsys):
    """0 done; 1 failed; 2 usage; 3 quality; 4 validation; 5 machine; 124 time limit; 130 interrupted."""
    defined = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert defined == {0, 1, 2, 3, 4, 5, 124, 130}
    _, out, _ = call(capsys, "--help")
    text = " ".join(out.partition("Exit codes:")[2].partition("Options:")[0].split())
    assert {int(code) for code in re.findall(r"(?:^| )(\d+) [a-z]", text)} == defined
    of_classes = {
        c.exit_code for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.NccltuneError)
    }
    assert of_classes == defined - {0}


# One cheap call of each command. RUN, ENV, POINTS and CONFIG stand for files made by the test.
CALLS = {
    "scan": ["--dry-run", "--backend", "gloo", "--tokens", "1,3"],
    "fit": ["RUN"],
    "calibrate": ["--model", "kimi-k2.5", "--topology", "rtx-pro-6000-x8", "--point", "decode:1:11.26", "-o", "p.json"],
    "predict": ["--draft-tokens", "3"],
    "emit": ["--setting", "seed"],
    "check": ["ENV"],
    "validate points": ["POINTS", "--model", "kimi-k2.5", "--topology", "rtx-pro-6000-x8", "--tolerance", "99"],
    "validate trace": ["TRACE"],
    "validate sglang": ["--model-path", "MODEL", "--model", "kimi-k2.5", "--topology", "rtx-pro-6000-x8", "--settings", "base", "--draft-tokens", "1", "--tp", "8", "--dry-run"],
    "models list": [],
    "models show": ["kimi-k2.5"],
    "models add": ["CONFIG", "--name", "mine"],
    "topology list": [],
    "topology show": ["h200-x2"],
    "topology add": ["TOPOLOGY"],
    "topology detect": [],
    "doctor": [],
    "import": [str(DATA / "nccl-tests" / "05-8x4090-pcie-full-table.txt")],
    "config show": [],
}  # fmt: skip


@pytest.fixture
def stand_ins(tmp_path):
    run = make_run(tmp_path / "run", tuned_fit())
    env = tmp_path / "nccl.env"
    env.write_text("export NCCL_PROTO=LL\n")
    points = tmp_path / "points.csv"
    points.write_text("phase,batch_size,time_ms,use\ndecode,1,11,calibrate\ndecode,4,14,score\n")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 256, "vocab_size": 1000, "intermediate_size": 512,
        "num_attention_heads": 4, "num_key_value_heads": 2, "torch_dtype": "bfloat16",
    }))  # fmt: skip
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": _forwards(5)}))
    topology = tmp_path / "my-h200-x2.toml"
    shutil.copy(registry.names("topology")["h200-x2"], topology)
    return {"RUN": run, "ENV": env, "POINTS": points, "TRACE": trace, "CONFIG": config, "TOPOLOGY": topology}


def _forwards(num):
    """Graph launches of two products and two all-reduces each, as torch's profiler writes them."""
    events = []
    for number in range(num):
        start = 1000.0 * number
        events.append(
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaGraphLaunch",
                "ts": start,
                "dur": 2,
                "pid": 9,
                "tid": 9,
                "args": {"correlation": number + 1},
            }
        )
        for position, name in enumerate(
            ["gemm", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"] * 2
        ):
            args = {"device": 0, "stream": 7, "correlation": number + 1, "grid": [4, 1, 1]}
            events.append(
                {
                    "ph": "X",
                    "cat": "kernel",
                    "name": name,
                    "ts": start + 10 * position,
                    "dur": 8.0,
                    "pid": 0,
                    "tid": 7,
                    "args": args,
                }
            )
    return events  # fmt: skip


def test_the_table_of_calls_is_complete():
    assert set(CALLS) == {" ".join(path) for path, _ in LEAVES}


@pytest.mark.parametrize("command", CALLS)
def test_json_is_one_document_on_stdout(capsys, stand_ins, command):
    args = [stand_ins.get(word, word) for word in CALLS[command]]
    if command == "fit":
        args = [_measured_run(stand_ins["RUN"].parent)]
    code, out, err = call(capsys, *command.split(), *args, "--json")
    assert "Traceback" not in err
    if command == "topology detect" and code == errors.EXIT_MACHINE:  # no GPU here
        assert out == ""
        assert "GPU" in err
        return
    # validate answers, and then says by its code what the answer is worth
    assert code in ((0, errors.EXIT_QUALITY, errors.EXIT_VALIDATION) if command.startswith("validate") else (0,)), err
    assert isinstance(json.loads(out), dict)
    assert out.endswith("}\n")


def _measured_run(folder):
    """A run with two settings at three sizes; its times are inputs of this test."""
    measured = [
        Measurement(
            case_id=f"{setting.name}-{size}", setting=setting, size_bytes=size, count=size // 2, timing="in-forward", num_ranks=8, dtype="bfloat16",
            base="sglang", backend="nccl", status="ok", in_force=True, samples_us=[time] * 20, stats=stats.summarize([time] * 20).to_dict(),
        )
        for setting, time in ((BASE, 20.0), (Setting.make({"NCCL_PROTO": "LL"}), 10.0))
        for size in DECODE
    ]  # fmt: skip
    return make_run(folder / "measured", make_fit([], model="kimi-k2.5"), measurements=measured)


def environment(**changes):
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE")}
    return kept | {"TERM": "xterm-256color", **changes}


COLOURED = ["-m", "nccltune", "doctor"]


def test_piped_output_has_no_escape_codes():
    for args in (COLOURED, ["-m", "nccltune", "predict", "--draft-tokens", "3"]):
        done = subprocess.run([sys.executable, *args], capture_output=True, env=environment(), check=True)
        assert done.stdout
        assert b"\x1b" not in done.stdout + done.stderr


def on_a_terminal(env):
    """What a command prints on a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, *COLOURED], stdout=theirs, stderr=theirs, stdin=theirs, env=env)
    os.close(theirs)
    output = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux reports the closed end so
            break
        if not part:
            break
        output += part
    os.close(ours)
    assert process.wait() == 0
    return output


def test_no_color_takes_the_colour_out_on_a_terminal():
    colour = re.compile(rb"\x1b\[[0-9;]*\b(?:3[0-7]|38|9[0-7]|4[0-7])(?:;[0-9;]*)?m")
    assert colour.search(on_a_terminal(environment())), "a terminal gets colour"
    assert not colour.search(on_a_terminal(environment(NO_COLOR="1")))


@pytest.mark.parametrize(
    "args", [["--help"], ["scan", "--help"], ["predict", "--draft-tokens", "1-4"], ["config", "show"]]
)
def test_help_and_predictions_load_nothing_heavy(args):
    code = (
        f"import sys\nfrom nccltune.cli import main\ntry:\n    main({args})\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "heavy = ('torch', 'pandas', 'scipy.optimize', 'pynvml', 'matplotlib')\n"
        "print('loaded', [m for m in heavy if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip().endswith("loaded []")
