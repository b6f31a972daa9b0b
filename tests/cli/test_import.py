"""``nccltune import``: kinds, exit codes, clean JSON, files that are none of ours."""

import json
from pathlib import Path

import pytest

from nccltune.cli import _errors, cli
from nccltune.parse import importer

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def run(capsys):
    def call(*argv: object) -> tuple[int, str, str]:
        code = _errors.run(cli, ["import", *map(str, argv)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.mark.parametrize(
    ("file", "kind", "code"),
    [
        ("nccl-tests/05-8x4090-pcie-full-table.txt", "nccl-tests", 0),
        ("nccl-tests/20-crlf-bom.txt", "nccl-tests", 0),
        ("nccl-tests/23-json-output-nwrong-null.txt", "nccl-tests", 0),
        ("nccl-tests/34-two-runs-one-file.txt", "nccl-tests", 0),
        ("nccl-tests/09-wrong-results-g-notation.txt", "nccl-tests", 3),
        ("nccl-tests/08-no-mpi-two-rank-zeros.txt", "nccl-tests", 3),
        ("nccl-tests/14-hang-after-init.txt", "nccl-tests", 3),
        ("nccl-tests/nccl-tests-unsupported-algo.txt", "nccl-tests", 3),
        ("nccl-log/01-env-echo-and-channels.txt", "nccl-log", 0),
        ("nccl-log/05-tuning-table.txt", "nccl-log", 0),
        ("sglang/01-v053-accept-len-and-rate.txt", "engine-log", 0),
        ("sglang/09-bench-serving-accept-length.txt", "engine-log", 0),
        ("sglang/12-bench-jsonl-appended-null.txt", "engine-log", 0),
        ("sglang/13-prometheus-draft-and-unified.txt", "engine-log", 0),
        ("sglang/15-vllm-v1-specdecoding.txt", "engine-log", 0),
        ("sglang/20-custom-allreduce-disabled.txt", "engine-log", 0),
        ("topo/01-8x4090-pix-sys-nic.txt", "topo", 0),
        ("topo/12-one-gpu-numa-na.txt", "topo", 0),
        ("topo/16-header-at-column-zero.txt", "topo", 0),
    ],
)
def test_kind_is_told_by_content(run, file, kind, code):
    got, out, err = run(DATA / file, "--json")
    assert (got, json.loads(out)["kind"]) == (code, kind)
    assert "Traceback" not in err


def test_secrets_of_a_report_reach_nothing(run, tmp_path):
    report = DATA / "nccl-tests/23-json-output-nwrong-null.txt"
    _, out, err = run(report, "--json", "-o", tmp_path / "out.json")
    _, table, _ = run(report)
    written = (tmp_path / "out.json").read_text()
    assert all("hf_example" not in text and "HF_TOKEN" not in text for text in (out, err, table, written))
    document = json.loads(written)
    assert (document["schema"], document["schema_version"]) == ("nccltune.import", 1)
    assert document["runs"] == json.loads(out)["runs"]


def test_table_and_warnings_are_apart(run):
    code, out, err = run(DATA / "nccl-tests/17-v220-header-e-notation-time.txt")
    assert code == 0
    assert "run 1: all_reduce, 2 ranks, ok" in out
    assert "152.73" in out
    assert "warning: times of 17179869184 bytes" in err
    assert "warning" not in out
    assert run(DATA / "nccl-tests/17-v220-header-e-notation-time.txt", "-q")[2] == ""


def test_unusable_results_say_why(run):
    code, out, err = run(DATA / "nccl-tests/29-no-algorithm-available.txt", "--json")
    assert code == 3
    assert json.loads(out)["runs"][0]["error"]["kind"] == "no_algorithm"
    assert "NVLS" in err


def test_other_tables(run):
    _, out, _ = run(DATA / "nccl-log/nccl-debug-ll.txt", "--kind", "nccl-log")
    assert "NCCL's model of AllReduce" in out
    assert "28672" in out
    _, out, _ = run(DATA / "sglang/01-v053-accept-len-and-rate.txt")
    assert "accept length: 1.908 (mean of 6)" in out
    _, out, _ = run(DATA / "topo/01-8x4090-pix-sys-nic.txt")
    assert "worst GPU link: SYS" in out


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (b"", []),
        (b"\xef\xbb\xbf \n", []),
        (b"\x00\x01\x02\xff" * 100, []),
        (b"a shopping list\n", []),
        (b'{"a": 1}', []),
        (b"[]", []),
        (b"a shopping list\n", ["--kind", "nccl-tests"]),
        (b"a shopping list\n", ["--kind", "nccl-log"]),
        (b"a shopping list\n", ["--kind", "topo"]),
        (b"a shopping list\n", ["--kind", "engine-log"]),
        (b"vm:1:2 [0] NCCL INFO 2 coll channels\n", ["--kind", "nccl-tests"]),
    ],
)
def test_what_cannot_be_read_is_wrong_input(run, tmp_path, content, options):
    file = tmp_path / "file.txt"
    file.write_bytes(content)
    code, out, err = run(file, "--json", *options)
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")


def test_wrong_paths(run, tmp_path):
    assert run(tmp_path / "missing.txt")[0] == 2
    assert run(tmp_path)[0] == 2
    code, out, err = run(DATA / "nccl-log/01-env-echo-and-channels.txt", "-o", tmp_path / "no" / "folder.json")
    assert (code, out) == (2, "")
    assert "-o" in err


def test_other_encodings(run, tmp_path):
    text = (DATA / "nccl-tests/05-8x4090-pcie-full-table.txt").read_text()
    wide = tmp_path / "powershell.txt"
    wide.write_bytes(text.encode("utf-16"))
    latin = tmp_path / "latin.txt"
    latin.write_bytes("gerät\n".encode("latin-1") + text.encode())
    for file in (wide, latin):
        code, out, _ = run(file, "--json")
        assert (code, len(json.loads(out)["runs"][0]["rows"])) == (0, 25)


def test_help_has_an_example(run):
    code, out, _ = run("--help")
    assert code == 0
    assert "nccltune import all_reduce.txt" in out


def test_a_device_without_an_end_is_refused(run, monkeypatch):
    monkeypatch.setattr(importer, "_MAX_BYTES", 1 << 20)
    code, out, err = run("/dev/zero")
    assert (code, out) == (2, "")
    assert "larger than" in err


def test_journal_prefix(run, tmp_path):
    text = (DATA / "nccl-tests/05-8x4090-pcie-full-table.txt").read_text()
    path = tmp_path / "journal.txt"
    path.write_text("".join(f"Nov 30 10:11:12 host1 python[123]: {line}\n" for line in text.splitlines()))
    code, out, _ = run(path, "--json")
    rows = json.loads(out)["runs"][0]["rows"]
    assert code == 0
    assert len(rows) == 25
    assert next(r for r in rows if r["size_bytes"] == 65536)["out_of_place"]["time_us"] == 53.5


PREFIXES = ("[1,0]<stdout>:", "0: ", "2026-11-30T10:11:12.1Z ", "\x1b[33m", "Nov 30 10:11:12 host1 python[123]: ")


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    "file",
    ["topo/03-8xh100-nv18-9nics.txt", "topo/08-ansi-underline-nv12-nics.txt", "sglang/09-bench-serving-accept-length.txt",
     "sglang/12-bench-jsonl-appended-null.txt", "sglang/13-prometheus-draft-and-unified.txt", "nccl-log/05-tuning-table.txt"],
)  # fmt: skip
def test_what_launchers_put_in_front_of_a_line_changes_nothing(run, tmp_path, prefix, file):
    path = tmp_path / "captured.txt"
    path.write_text("".join(f"{prefix}{line}\n" for line in (DATA / file).read_text().splitlines()))
    plain, captured = run(DATA / file, "--json"), run(path, "--json")
    assert captured[0] == plain[0] == 0
    assert json.loads(captured[1]) == json.loads(plain[1])


def test_the_record_cannot_take_the_place_of_a_folder(run, tmp_path):
    code, out, err = run(DATA / "topo/h200-x2.txt", "-o", tmp_path)
    assert (code, out) == (2, "")
    assert "is a folder" in err


def test_a_time_that_is_no_number_is_printed_as_such(run, tmp_path):
    path = tmp_path / "report.json"
    text = (DATA / "nccl-tests/23-json-output-nwrong-null.txt").read_text()
    path.write_text(text.replace('"time":24.880000', '"time":NaN'))
    code, out, _ = run(path)
    assert code == 0
    assert "no number" in out
