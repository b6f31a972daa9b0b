"""The topology command: what users type and what scripts read."""

import json
import sys
from pathlib import Path

import pytest

from nccltune.cli import main
from nccltune.registry import load_topology

SHIPPED = ["b200-x8", "h100-x8", "h200-x2", "h200-x4", "h200-x8", "rtx-pro-6000-x8"]
MACHINE = """schema = "nccltune.topology"
schema_version = 1
name = "{name}"
title = "2x test card"
num_gpus = 2
source = ["made for a test"]
[gpu]
name = "test card"
memory_bytes = 1e9
memory_bandwidth_bytes_per_s = 1e11
l2_bytes = 1e6
bf16_flop_per_s = 1e12
compute_capability = "8.9"
[links]
kind = "pcie"
name = "PCIe 4.0 x16"
bandwidth_bytes_per_s = 3.15e10
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("NCCLTUNE_DATA_PATH", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["topology", *args])
    return int(stop.value.code or 0)


def test_list_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "nccltune.topology_list"
    assert [entry["name"] for entry in document["topologies"]] == SHIPPED
    assert {entry["origin"] for entry in document["topologies"]} == {"shipped"}


def test_list_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in SHIPPED)
    assert "\x1b[" not in out


def test_show_has_every_curve_and_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "rtx-pro-6000-x8") == 0
    out = capsys.readouterr().out
    assert "all-reduce over 8 ranks" in out
    assert "NCCL_GRAPH_FILE=nccl_graph_opt.xml" in out
    assert "128 MiB" in out
    assert "data sheet" in out


def test_show_json_by_alias_and_by_path(capsys: pytest.CaptureFixture[str], own_folder: Path) -> None:
    assert run("show", "8x-RTX-Pro-6000", "--json") == 0
    assert json.loads(capsys.readouterr().out)["name"] == "rtx-pro-6000-x8"
    (own_folder / "m.toml").write_text(MACHINE.format(name="mine"))
    assert run("show", "m.toml", "--json") == 0
    assert json.loads(capsys.readouterr().out)["links"]["kind"] == "pcie"


def test_show_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "h200-x9") == 2
    assert "h200-x8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "library", "num_ranks", "setting", "sizes", "times"),
    [
        # Rounded as the published tables print them: AIConfigurator (43 to 45), rtx6kpro (40, 41)
        ("rtx-pro-6000-x8", "nccl", 8, "base", [8, 16, 32, 64, 128, 256, 512, 1024],
         [26.7, 27.0, 29.4, 34.2, 47.8, 84.8, 156.1, 131.5]),
        ("h200-x8", "nccl", 8, "base", [8, 16, 32, 64, 128, 256, 512, 1024], [16.7, 18.3, 18.4, 19.9, 21.5, 20.8, 20.5, 26.1]),
        ("h200-x8", "sglang-custom", 8, "base", [8, 16, 32, 64, 128, 256, 512, 1024], [3.6, 3.7, 4.2, 5.0, 6.7, 8.0, 14.9, 13.1]),
        ("rtx-pro-6000-x8", "nccl", 8, "graph-xml", [32, 64, 128, 256], [26.2, 25.6, 32.1, 37.3]),
        ("rtx-pro-6000-x8", "p2pmark-custom", 8, "base", [1, 8, 32, 64, 256], [7.5, 9.2, 16.5, 25.9, 73.6]),
    ],
)  # fmt: skip
def test_published_curves(
    name: str, library: str, num_ranks: int, setting: str, sizes: list[int], times: list[float]
) -> None:
    curve = next(
        c
        for c in load_topology(name).allreduce
        if (c.library, c.num_ranks, c.setting.name) == (library, num_ranks, setting)
    )
    found = dict(zip(curve.size_bytes, curve.time_us, strict=True))
    assert [found[size * 1024] for size in sizes] == pytest.approx(times, abs=0.051)


def test_every_curve_fits_its_machine() -> None:
    for name in SHIPPED:
        topology = load_topology(name)
        assert topology.name == name
        assert all(curve.num_ranks <= topology.num_gpus for curve in topology.allreduce)
        assert all(curve.source for curve in topology.allreduce)


def test_add_then_found_by_name_and_never_overwritten(capsys: pytest.CaptureFixture[str], own_folder: Path) -> None:
    (own_folder / "m.toml").write_text(MACHINE.format(name="mine"))
    assert run("add", "m.toml", "--json") == 0
    added = json.loads(capsys.readouterr().out)
    assert Path(added["path"]).is_file()
    assert run("list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)["topologies"]
    assert [entry["origin"] for entry in listed if entry["name"] == "mine"] == ["user"]
    assert run("add", "m.toml") == 2
    assert "exists" in capsys.readouterr().err
    assert run("add", "m.toml", "--force") == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "schema"),
        ("not toml [", "is not TOML"),
        (MACHINE.format(name="../../etc/x"), "file name"),
        (MACHINE.format(name="mine").replace("num_gpus = 2", "num_gpus = 0"), "num_gpus"),
        (MACHINE.format(name="mine").replace("l2_bytes", "l2_size"), "gpu.l2"),
    ],
)
def test_add_refuses(text: str, said: str, capsys: pytest.CaptureFixture[str], own_folder: Path) -> None:
    (own_folder / "m.toml").write_text(text)
    assert run("add", "m.toml") == 2
    assert said in capsys.readouterr().err
    assert not list((own_folder / "config").rglob("*.toml"))


def test_add_a_missing_or_binary_file(capsys: pytest.CaptureFixture[str], own_folder: Path) -> None:
    assert run("add", "nowhere.toml") == 2
    assert "does not exist" in capsys.readouterr().err
    (own_folder / "b.toml").write_bytes(b"\xff\xfe\x00")
    assert run("add", "b.toml") == 2


def test_a_broken_file_of_the_user_does_not_break_the_list(
    capsys: pytest.CaptureFixture[str], own_folder: Path
) -> None:
    folder = own_folder / "config" / "nccltune" / "topology"
    folder.mkdir(parents=True)
    (folder / "broken.toml").write_text("nonsense [")
    assert run("list", "--json") == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert "broken.toml" in document["warnings"][0]
    assert "broken.toml" in captured.err
    assert len(document["topologies"]) == len(SHIPPED)


def test_detect_without_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # importing it fails
    assert run("detect", "--json") == 5
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no NVIDIA GPU" in captured.err


def test_detect_writes_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, own_folder: Path
) -> None:
    found = load_topology("h200-x2")
    monkeypatch.setattr("nccltune.cli.topology.detect_topology", lambda: found)
    assert run("detect", "-o", "mine.toml") == 0
    assert load_topology(str(own_folder / "mine.toml")) == found
    assert capsys.readouterr().out == ""
    assert run("detect", "-o", "mine.toml") == 2
    assert run("detect", "-o", "mine.toml", "--force", "-q") == 0
    capsys.readouterr()
    assert run("detect") == 0
    assert capsys.readouterr().out == (own_folder / "mine.toml").read_text()
