"""``nccltune.toml`` and NCCLTUNE_ variables: below the command line, in that order, and never wrong in silence."""

import json
import os

import pytest

from nccltune.cli import _errors, _variables, cli
from nccltune.errors import EXIT_USAGE


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working folder and an empty user's folder; no variable of whoever runs the tests."""
    for name in [n for n in os.environ if n.startswith("NCCLTUNE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def call(capsys, *args):
    code = _errors.run(cli, list(args))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def ranks_used(capsys, *args, root=()):
    code, out, _ = call(capsys, *root, "models", "show", "kimi-k2.5", "--json", *args)
    assert code == 0
    return json.loads(out)["num_ranks"]


def test_command_line_beats_variable_beats_file_beats_default(capsys, folder, monkeypatch):
    assert ranks_used(capsys) == 8
    (folder / "nccltune.toml").write_text("[models.show]\nranks = 4\n")
    assert ranks_used(capsys) == 4
    monkeypatch.setenv("NCCLTUNE_MODELS_SHOW_RANKS", "2")
    assert ranks_used(capsys) == 2
    assert ranks_used(capsys, "--ranks", "16") == 16


def test_the_nearest_file_is_read_and_only_that(capsys, folder, monkeypatch):
    users = folder.parent / "config" / "nccltune"
    users.mkdir(parents=True)
    (users / "nccltune.toml").write_text("[models.show]\nranks = 3\n")
    assert ranks_used(capsys) == 3
    (folder / "nccltune.toml").write_text("[models.show]\nranks = 4\n")
    assert ranks_used(capsys) == 4
    (folder / "v.toml").write_text("[models.show]\nranks = 5\n")
    monkeypatch.setenv("NCCLTUNE_CONFIG", "v.toml")
    assert ranks_used(capsys) == 5
    (folder / "o.toml").write_text("[models.show]\nranks = 6\n")
    assert ranks_used(capsys, root=["--config", "o.toml"]) == 6


def test_keys_are_long_option_names_and_required_options_count(capsys, folder):
    (folder / "nccltune.toml").write_bytes(b"\xef\xbb\xbf[predict]\r\ndraft-tokens = [2, 3]\r\njson = true\r\n")
    code, out, _ = call(capsys, "predict")
    assert code == 0
    assert [row["draft_tokens"] for row in json.loads(out)["rows"]] == [1, 2, 3]


def test_lists_flags_and_repeatable_options_reach_the_plan(capsys, folder):
    (folder / "nccltune.toml").write_text(
        '[scan]\nbackend = "gloo"\ntokens = 1\nproto = ["LL", "Simple"]\nset = ["NCCL_IGNORE_CPU_AFFINITY=0,1"]\ndry_run = true\n'
    )
    code, out, _ = call(capsys, "scan", "--json")
    assert code == 0
    names = [setting["name"] for setting in json.loads(out)["settings"]]
    # base, and 2 protocols x 2 values
    assert len(names) == 5


def test_a_variable_per_option_called_after_its_long_name(capsys, monkeypatch):
    monkeypatch.setenv("NCCLTUNE_PREDICT_DRAFT_TOKENS", "2")
    monkeypatch.setenv("NCCLTUNE_PREDICT_JSON", "1")
    code, out, err = call(capsys, "predict")
    assert code == 0
    assert json.loads(out)["rows"][1]["draft_tokens"] == 2
    assert "means nothing" not in err
    monkeypatch.setenv("NCCLTUNE_EMIT_FORMAT", "docker")
    assert "--env-file" in call(capsys, "emit", "--setting", "seed")[1]


def test_no_two_options_share_a_variable():
    from nccltune.cli import COMMANDS

    names = [
        _variables.variable_name(path, option)
        for name in COMMANDS
        for path, one in _variables.walk(_variables.load(name), (name,))
        for option in _variables.options(one)
    ]
    assert len(names) == len(set(names))
    assert not set(names) & set(_variables.GENERAL)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("NCCLTUNE_SCAN_BAKEND", "NCCLTUNE_SCAN_BACKEND"),
        ("NCCLTUNE_DATAPATH", "NCCLTUNE_DATA_PATH"),
        ("NCCLTUNE_XYZZY", "NCCLTUNE_<COMMAND>_<OPTION>"),
    ],
)
def test_an_unknown_variable_is_a_warning(capsys, monkeypatch, name, says):
    monkeypatch.setenv(name, "1")
    code, out, err = call(capsys, "models", "show", "kimi-k2.5", "--json")
    assert code == 0
    json.loads(out)
    assert f"warning: {name} is set" in err
    assert says in err


def test_known_variables_are_silent(capsys, monkeypatch):
    for name in ("NCCLTUNE_SCAN_BACKEND", "NCCLTUNE_MODELS_SHOW_TOKENS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("NCCLTUNE_DEBUG", "")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    assert call(capsys, "config", "show")[2] == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[scann]\nranks = 2\n", "did you mean scan"),
        ("ranks = 2\n", "'ranks', which is no command"),
        ("[scan]\nbakend = 'gloo'\n", "did you mean backend"),
        ("[scan]\nas_json = true\n", "'as_json' under [scan]"),
        ("[models]\nranks = 2\n", "tables are"),
        ("[models.shw]\nranks = 2\n", "did you mean show"),
        ("[scan]\nbackend = 'glow'\n", "'glow' is not one of"),
        ("[scan]\nranks = 'two'\n", "'two' is not a valid integer"),
        ("[scan]\nranks = 0\n", "0 is not in the range"),
        ("[scan]\nranks = true\n", "true or false"),
        ("[scan]\nforce = 'yes'\n", "true or false"),
        ("[scan.tokens]\na = 1\n", "a table"),
        ("[scan\n", "cannot be read"),
        ("[scan]\nranks = 2\nranks = 3\n", "cannot be read"),
    ],
)
def test_a_wrong_file_is_one_error_that_names_it(capsys, folder, text, says):
    (folder / "nccltune.toml").write_text(text)
    code, out, err = call(capsys, "models", "list")
    assert (code, out) == (EXIT_USAGE, "")
    assert "nccltune.toml" in err
    assert says in err
    assert "Traceback" not in err


def test_bytes_that_are_no_text_and_files_that_are_not_there(capsys, folder, monkeypatch):
    (folder / "nccltune.toml").write_bytes(b"\xff\xfe[\x00s\x00")
    assert call(capsys, "models", "list")[0] == EXIT_USAGE
    monkeypatch.setenv("NCCLTUNE_CONFIG", "gone.toml")
    code, _, err = call(capsys, "models", "list")
    assert code == EXIT_USAGE
    assert "gone.toml does not exist" in err


def test_config_show_says_where_each_value_comes_from(capsys, folder, monkeypatch):
    assert "nothing is set" in call(capsys, "config", "show")[1]
    (folder / "nccltune.toml").write_text('[scan]\nranks = 2\nbackend = "gloo"\n[emit]\nformat = "docker"\n')
    monkeypatch.setenv("NCCLTUNE_SCAN_RANKS", "4")
    code, out, _ = call(capsys, "config", "show", "--json")
    document = json.loads(out)
    assert (code, document["file"]) == (0, "nccltune.toml")
    found = {(row["command"], row["option"]): (row["value"], row["source"]) for row in document["values"]}
    assert found == {
        ("scan", "--ranks"): ("4", "variable"),
        ("scan", "--backend"): ("gloo", "file"),
        ("emit", "--format"): ("docker", "file"),
    }
    everything = json.loads(call(capsys, "config", "show", "scan", "--json")[1])["values"]
    assert {
        "command": "scan",
        "option": "--seed",
        "value": 0,
        "source": "default",
        "variable": "NCCLTUNE_SCAN_SEED",
    } in everything
    assert "NCCLTUNE_SCAN_RANKS" in call(capsys, "config", "show")[1]
