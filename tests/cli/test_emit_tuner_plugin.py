"""``nccltune emit --format tuner-plugin``: one folder, and in it what NCCL needs to follow the measured choices."""

import json
import shutil
import subprocess

import pytest
from emit_runs import DECODE, choice, entry, make_fit, make_machine, make_run, tuned_fit
from fake_nccl_tuner import Communicator

from nccltune.cli import _errors, cli
from nccltune.emit import formats, lint
from nccltune.tuner import LIBRARY, PolicyRule, parse_policy

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine")


def call(capsys, *args):
    code = _errors.run(cli, ["emit", *map(str, args)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", tuned_fit())


def test_the_folder_works_as_its_env_file_says(capsys, run, tmp_path, monkeypatch):
    folder = tmp_path / "tuner of mine"
    code, out, err = call(capsys, run, "--format", "tuner-plugin", "-o", folder)
    assert (code, out) == (0, "")
    assert f"wrote {folder}" in err
    assert sorted(p.name for p in folder.iterdir()) == [LIBRARY, "policy.csv", "tuner.env"]
    # a stale variable of an earlier env file would overrule the plugin
    script = f"export NCCL_PROTO=LL NCCL_MIN_NCHANNELS=4; . '{folder}/tuner.env'; env | grep ^NCCL_ | sort"
    env = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True).stdout.splitlines()
    assert env == [
        "NCCL_CUMEM_ENABLE=0",
        "NCCL_NVLS_ENABLE=0",
        f"NCCL_TUNER_CONFIG_FILE={folder}/policy.csv",
        f"NCCL_TUNER_PLUGIN={folder}/{LIBRARY}",
    ]
    monkeypatch.setenv("NCCL_TUNER_CONFIG_FILE", str(folder / "policy.csv"))
    comm = Communicator(folder / LIBRARY, 5, None, num_ranks=8)
    chosen = comm.choose("AllReduce", 14336)
    assert (chosen.algo, chosen.proto) == ("Ring", "LL")
    assert comm.choose("AllReduce", 8388608).untouched
    assert comm.choose("AllGather", 14336).untouched
    comm.close()


def test_policy_carries_rules_and_evidence_and_is_recognised(capsys, run, tmp_path):
    folder = tmp_path / "tuner"
    assert call(capsys, run, "--format", "tuner-plugin", "-o", folder)[0] == 0
    text = (folder / "policy.csv").read_text()
    assert parse_policy(text) == [PolicyRule("AllReduce", 14336, 458752, "Ring", "LL", None, 8, 1)]
    assert "50.0% faster [48.9, 51.1] than NCCL's own choice" in text
    assert "# written for: NCCL 2.28.9" in text
    for name, form in (("policy.csv", "tuner-plugin"), ("tuner.env", "shell")):
        report = lint.check_file(str(folder / name), environ={}, conf={})
        assert (report.format, report.findings) == (form, [])


def test_json_has_the_rules_and_the_variables(capsys, run, tmp_path):
    code, out, _ = call(capsys, run, "--format", "tuner-plugin", "-o", tmp_path / "t", "--json")
    body = json.loads(out)
    assert code == 0
    assert body["rules"][0]["algo"] == "Ring"
    assert body["env"]["NCCL_TUNER_PLUGIN"] == str(tmp_path / "t" / LIBRARY)
    assert parse_policy(body["text"])


def test_written_again_but_never_over_somebody_elses_file(capsys, run, tmp_path):
    folder = tmp_path / "t"
    folder.mkdir()
    assert call(capsys, run, "--format", "tuner-plugin", "-o", folder)[0] == 0
    assert call(capsys, run, "--format", "tuner-plugin", "-o", folder)[0] == 0
    (folder / "policy.csv").write_text("mine\n")
    code, _, err = call(capsys, run, "--format", "tuner-plugin", "-o", folder)
    assert code == 2
    assert "not written by nccltune" in err
    assert call(capsys, run, "--format", "tuner-plugin", "-o", folder, "--force")[0] == 0


@pytest.mark.parametrize(
    ("output", "code", "words"),
    [
        (None, 2, "needs a folder"),
        ("-", 2, "needs a folder"),
        ("run/manifest.json", 2, "is no folder"),
        ("none/tuner", 2, "does not exist"),
        ("x" * 200 + "/" + "y" * 100, 2, "NCCL cuts NCCL_TUNER_PLUGIN after 254 bytes"),
    ],
)
def test_where_it_cannot_go(capsys, run, tmp_path, monkeypatch, output, code, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ("x" * 200)).mkdir()
    got, out, err = call(capsys, run, "--format", "tuner-plugin", *([] if output is None else ["-o", output]))
    assert (got, out) == (code, "")
    assert words in err
    assert not list(tmp_path.rglob(LIBRARY))


def test_what_it_refuses(capsys, run, tmp_path, monkeypatch):
    for args, code, words in (
        (["--setting", "seed"], 2, "needs a run"),
        ([make_run(tmp_path / "none", make_fit([entry({}, (20, 20, 40), choices={s: choice("Ring", "LL", 1) for s in DECODE})]))], 3, "nothing to tell"),
        ([make_run(tmp_path / "blind", make_fit([entry({}, (20, 20, 40))]))], 3, "no tuner rules"),
        ([run, "--nccl-version", "2.21.5"], 3, "2.22.0 or later"),
    ):  # fmt: skip
        got, _, err = call(capsys, *args, "--format", "tuner-plugin", "-o", tmp_path / "t")
        assert got == code
        assert words in err
        assert not (tmp_path / "t").exists()
    monkeypatch.setenv("CC", "no-such-compiler")
    code, _, err = call(capsys, run, "--format", "tuner-plugin", "-o", tmp_path / "t")
    assert code == 5
    assert "no-such-compiler" in err
    assert not (tmp_path / "t" / "tuner.env").exists()


def test_warnings_are_in_the_policy_too(capsys, tmp_path):
    run = make_run(tmp_path / "run", tuned_fit(), machine=make_machine(link="NV18"))
    code, _, err = call(capsys, run, "--format", "tuner-plugin", "-o", tmp_path / "t", "--nccl-version", "2.30.7")
    assert code == 0
    text = " ".join((tmp_path / "t" / "policy.csv").read_text().replace("\n#", " ").split())
    for words in ("SGLang would carry decode-size all-reduces", "measured with NCCL 2.28.9, written for NCCL 2.30.7"):
        assert words in err
        assert f"WARNING: {words}" in text


def test_check_names_the_line_that_the_plugin_refuses(tmp_path):
    path = tmp_path / "policy.csv"
    path.write_text(
        "nccltune-policy 1\nAllReduce,0,100,Ring,LL,*,*,*\nAllReduce,0,50,Ring,LL,4,2,1\nAllReduce,0,9,Rong,LL,4,2,1\n"
    )
    report = lint.check_file(str(path), environ={}, conf={})
    [finding] = report.findings
    assert (report.format, finding.level, finding.code, finding.line) == ("tuner-plugin", "problem", "file-refused", 4)
    path.write_text(path.read_text().replace("Rong", "Ring"))
    hidden = [(f.level, f.code, f.line) for f in lint.check_file(str(path), environ={}, conf={}).findings]
    assert hidden == [("warning", "never-matches", 3), ("warning", "never-matches", 4)]
    assert formats.get("tuner-plugin").parse(path.read_text())["AllReduce[0-50]@1/2"] == "Ring/LL/4"
