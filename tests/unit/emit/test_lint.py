"""What an env file's reader takes differently from its writer. Expected readings from the consumers' own rules."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccltune.emit import formats
from nccltune.emit.document import MARK, Document, Variable
from nccltune.emit.lint import check_file
from nccltune.emit.overrides import conf_values
from nccltune.emit.shell_words import split_commands
from nccltune.errors import InputError

CASES = Path(__file__).parent / "cases"


def check(tmp_path, text, form="auto", version=None, environ=None, conf=None, name="x.env"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return check_file(str(path), form, version, environ=environ or {}, conf=conf or {})


def problems(report):
    return [(f.line, f.code) for f in report.findings if f.level == "problem"]


def case(name, form="auto", version=None):
    return check_file(str(CASES / name), form, version, environ={}, conf={})


def test_case_01_quotes_for_docker():
    report = case("01-shell-quoted-for-docker.env", "docker")
    assert report.variables == {"NCCL_PROTO": '"LL"', "NCCL_ALGO": "'Ring'", "NCCL_MIN_NCHANNELS": "8"}
    assert problems(report) == [(2, "quotes"), (3, "quotes")]
    assert problems(case("01-shell-quoted-for-docker.env")) == [(2, "quotes"), (3, "quotes")]


def test_case_02_inline_comments_for_systemd():
    report = case("02-inline-comments-for-systemd.env", "systemd")
    assert report.variables == {
        "NCCL_MIN_NCHANNELS": "8        # was 4",
        "NCCL_P2P_LEVEL": "SYS# both sockets",
        "NCCL_DEBUG_FILE": "$HOME/nccl.%h.%p",
    }
    assert problems(report) == [(1, "inline-comment"), (2, "inline-comment"), (3, "dropped"), (4, "no-expansion")]
    assert {line for line, _ in problems(case("02-inline-comments-for-systemd.env"))} == {1, 2, 3, 4}


def test_case_05_algorithm_for_one_collective():
    assert problems(case("05-algo-per-collective.env", version=(2, 31, 2))) == [(1, "starved-collectives")]
    assert problems(case("05-algo-per-collective.env", version=(2, 28, 9))) == []
    assert "ring,tree;allreduce:tree" in case("05-algo-per-collective.env", version=(2, 31, 2)).findings[0].advice


@pytest.mark.parametrize(
    ("form", "text", "code"),
    [
        ("shell", "NCCL_PROTO=LL\n", "not-exported"),
        ("shell", "export NCCL_PROTO = LL\n", "spaces-around-equals"),
        ("shell", "export NCCL_PROTO=^LL128;allreduce:LL128\n", "unquoted-semicolon"),
        ("shell", "export NCCL_PROTO='LL\n", "unreadable"),
        ("shell", "NCCL_PROTO=LL python x.py\n", "one-command"),
        ("docker", "export NCCL_PROTO=LL\n", "file-refused"),
        ("docker", "NCCL_PROTO=LL \n", "trailing-space"),
        ("docker", "NCCL_DEBUG_FILE=$HOME/x\n", "no-expansion"),
        ("compose", "NCCL_DEBUG_FILE=$HOME/x\n", "interpolated"),
        ("compose", "NCCL_PROTO='LL\n", "file-refused"),
        ("systemd", "NCCL_PROTO=LL \\\n", "trailing-backslash"),
        ("systemd", "NCCL_PROTO\n", "dropped"),
        ("nccl-conf", "NCCL_PROTO = LL\n", "name"),
        ("nccl-conf", "NCCL_PROTO= LL\n", "spaces"),
        ("nccl-conf", 'NCCL_PROTO="LL"\n', "quotes"),
        ("nccl-conf", "NCCL_DEBUG_FILE=/" + "a" * 1030 + "\n", "too-long"),
        ("k8s", "kind: ConfigMap\ndata:\n  NCCL_MIN_NCHANNELS: 8\n", "not-a-string"),
        ("k8s", "kind: Pod\nenv:\n  - name: NCCL_P2P_DISABLE\n    value: 1\n", "not-a-string"),
        ("k8s", "kind: ConfigMap\ndata:\n  NCCL_PROTO: |\n    LL\n", "not-a-string"),
        ("slurm", "#SBATCH --export=NCCL_ALGO=ring,tree\n", "slurm-export"),
        ("slurm", "srun --export=ALL,NCCL_ALGO=ring,tree python x\n", "slurm-commas"),
        ("json", '{"NCCL_MIN_NCHANNELS": 8}\n', "not-a-string"),
        ("docker", "NCCL_PROTO=LL\r\n", "crlf"),
        ("docker", "\ufeffNCCL_PROTO=LL\n", "bom"),
        ("docker", "NCCL_PROTO=LL\nNCCL_PROTO=Simple\n", "duplicate"),
        ("docker", "NCCL_PRTO=LL\n", "unknown-variable"),
        ("docker", "NCLL_PROTO=LL\n", "unknown-variable"),
        ("docker", "nccl_proto=LL\n", "unknown-variable"),
        ("docker", "NCCL_PROTO=\n", "empty"),
        ("docker", "NCCL_PROTO=LL129\n", "grammar"),
        ("docker", "NCCL_NTHREADS=500\n", "value"),
        ("docker", "NCCL_BUFFSIZE=4M\n", "value"),
        ("docker", "NCCL_P2P_LEVEL=NEAR\n", "value"),
        ("docker", "NCCL_MIN_NCHANNELS=8\nNCCL_MAX_NCHANNELS=4\n", "min-above-max"),
        ("docker", "NCCL_MAX_NCHANNELS=128\n", "clamped"),
        ("docker", "NCCL_ALGO=Tree\n", "starved-collectives"),
    ],
)
def test_each_trap_is_a_problem(tmp_path, form, text, code):
    report = check(tmp_path, text, form)
    assert code in [c for _, c in problems(report)]
    assert report.num_problems >= 1


def test_nearest_name_is_suggested(tmp_path):
    assert "NCCL_PROTO" in check(tmp_path, "NCCL_PRTO=LL\n", "docker").findings[0].advice


def test_no_effect_is_a_warning(tmp_path):
    report = check(tmp_path, "NCCL_PROTO=LL\nNCCL_BUFFSIZE=16777216\n", "docker")
    assert [(f.level, f.code, f.line) for f in report.findings] == [("warning", "no-effect", 2)]


@pytest.mark.parametrize(
    ("text", "name", "form"),
    [
        ("export A=1\nexport B=2\n", "x", "shell"),
        ("set -a\nNCCL_PROTO=LL\n", "x", "shell"),
        ("#!/bin/bash\n#SBATCH -N 1\nexport A=1\n", "x", "slurm"),
        ("apiVersion: v1\nkind: ConfigMap\n", "x", "k8s"),
        ("allreduce,0,1,ring,ll,1,1,8\n", "x", "tuner-csv"),
        ('{"NCCL_PROTO": "LL"}', "x", "json"),
        ("--speculative-algorithm EAGLE3\n", "x", "sglang-args"),
        ("NCCL_PROTO=LL\n", "nccl.conf", "nccl-conf"),
        ("NCCL_PROTO=LL\n", "x.env", "env"),
        ("# nccltune emit --format systemd (x)\nNCCL_PROTO=LL\n", "x.env", "systemd"),
    ],
)
def test_detection(tmp_path, text, name, form):
    assert check(tmp_path, text, name=name).format == form


def test_clean_files_are_clean(tmp_path):
    for form, text in (
        ("shell", "set -a\nNCCL_PROTO=LL # fine here\n"),
        ("auto", "# c\nNCCL_PROTO=LL\nOTHER=1\n"),
        ("k8s", 'kind: ConfigMap\ndata:\n  NCCL_X_Y: "8"\n'),
    ):
        assert check(tmp_path, text, form, version=(2, 28, 9)).num_problems == 0


@pytest.mark.parametrize("raw", [b"\xff\xfeN\0C\0", b"NCCL_PROTO=\xff\n", b"a\0b"])
def test_unreadable_bytes(tmp_path, raw):
    with pytest.raises(InputError):
        check(tmp_path, raw)


def test_missing_folder_and_huge_files(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        check_file(str(tmp_path / "none"))
    with pytest.raises(InputError, match="cannot read"):
        check_file(str(tmp_path))
    with pytest.raises(InputError, match="larger"):
        check(tmp_path, b"#" * (4 * 1024 * 1024 + 1))


def test_overrides(tmp_path):
    text = "NCCL_PROTO=LL\n"
    by_env = check(tmp_path, text, "docker", environ={"NCCL_PROTO": "Simple"})
    assert [(f.level, f.code) for f in by_env.findings] == [("warning", "environment-differs")]
    by_env = check(tmp_path, text, "nccl-conf", environ={"NCCL_PROTO": "Simple"})
    assert [(f.level, f.code) for f in by_env.findings] == [("problem", "overridden")]
    conf = check(tmp_path, text, "docker", conf={"NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring"})
    assert [f.code for f in conf.findings] == ["conf-differs", "conf-adds"]


def test_conf_files_are_found_in_nccls_order(tmp_path):
    (tmp_path / ".nccl.conf").write_text("NCCL_TEST_A=1\nNCCL_TEST_A=2\n")
    other = tmp_path / "other"
    other.write_text("NCCL_TEST_A=3\n")
    assert conf_values({"HOME": str(tmp_path)})["NCCL_TEST_A"] == "1"
    assert conf_values({"HOME": str(tmp_path), "NCCL_CONF_FILE": str(other)})["NCCL_TEST_A"] == "3"


@pytest.mark.parametrize("form", formats.NAMES)
@given(text=st.text(st.sampled_from(" \t\n\r\"'\\#=;:,$`{}[]-|&NCL_AXexport128"), max_size=60))
def test_readers_never_crash_on_any_text(form, text):
    reading = formats.get(form).read(text)
    assert all(isinstance(value, str) for value in reading.values().values())


def test_values_of_other_programs_are_not_reported(tmp_path):
    text = 'HF_TOKEN="s3cret"\nHF_TOKEN=s3cret\nexport HF_TOKEN=s3cret\nmy-key=s3cret\nNCCL_PROTO=LL\n'
    for form in ("auto", *formats.NAMES):
        if form == "json":
            continue  # not JSON: the parser's own message quotes nothing
        assert "s3cret" not in str(check(tmp_path, text, form).to_json()), form


@pytest.mark.parametrize(
    ("form", "text"),
    [("k8s", "export NCCL_PROTO=LL\n"), ("k8s", '{"a": 1}\n'), ("sglang-args", "export NCCL_PROTO=LL\n"), ("sglang-args", 'data:\n  NCCL_PROTO: "LL"\n')],
)  # fmt: skip
def test_a_file_of_another_format_is_a_problem_and_an_empty_one_is_none(tmp_path, form, text):
    assert problems(check(tmp_path, text, form)) == [(None, "nothing")]
    assert problems(check(tmp_path, "\n\n", form)) == []


def test_a_line_of_a_unit_is_not_a_line_of_an_environment_file(tmp_path):
    assert problems(check(tmp_path, 'Environment=NCCL_PROTO=LL "NCCL_ALGO=Ring"\n')) == [(1, "unit-line")]


@pytest.mark.parametrize(
    ("value", "codes"), [("-1", [(1, "value")]), ("0", [(1, "value")]), ("-2", []), ("1048576", [])]
)
def test_a_buffer_has_a_size(tmp_path, value, codes):
    assert problems(check(tmp_path, f"NCCL_BUFFSIZE={value}\n", "docker")) == codes


NASTY = ["^lo,docker$X", "a=b", "=LL", "#x", "x # y", "a'b", 'a"b', "a\\b", "$HOME", "${X}", "`id`", "a;b", "a|b&c", "é", "^LL128;allreduce:LL128"]  # fmt: skip


@pytest.mark.parametrize("form", [n for n in formats.NAMES if n not in (*formats.RULE_NAMES, "sglang-args")])
@pytest.mark.parametrize("value", NASTY)
def test_what_is_written_has_no_problem(tmp_path, form, value):
    document = Document(variables=(Variable("NCCL_SOCKET_IFNAME", value),), header=(f"{MARK} --format {form}",))
    try:
        text = formats.get(form).write(document)
    except InputError:
        return  # this form cannot hold it, and says so
    report = check(tmp_path, text, form)
    assert report.variables["NCCL_SOCKET_IFNAME"] == value
    if " #" in value and form in ("docker", "nccl-conf"):
        return  # reads right, and looks like the usual slip: it is told all the same
    assert problems(report) == []


def test_a_long_word_is_read_in_time_that_grows_with_its_length():
    """A word of 2 million characters; when each character copied what was read before, this took minutes."""
    text = f"export NCCL_X='{'a' * 2_000_000}'\n"
    (command,) = split_commands(text)
    assert len(command.words[1].text) == 2_000_000 + len("NCCL_X=")
