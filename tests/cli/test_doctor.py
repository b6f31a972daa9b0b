"""The doctor: on this machine for real, and on machines described by hand."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nccltune.cli import main
from nccltune.doctor import Diagnosis, Finding, judge
from nccltune.doctor.facts import Facts, find_nccl_tests
from nccltune.doctor.hardware import nccl_p2p_level
from nccltune.schemas.machine import GpuRecord, LibraryRecord, Machine
from nccltune.units import GIB, MIB


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["doctor", *args])
    return int(stop.value.code or 0)


def facts(num_gpus: int = 0, link: str = "NV18", **changes: Any) -> Facts:
    """A machine where all is well, but for what is changed."""
    names = [f"GPU{i}" for i in range(num_gpus)]
    machine = Machine(
        hostname_hash="00000000",
        os="Linux",
        kernel="6",
        python="3.11",
        cpu_model="a CPU",
        num_cpus=8,
        memory_bytes=64 * GIB,
        shm_free_bytes=changes.pop("shm_free_bytes", 64 * GIB),
        gpus=[
            GpuRecord(index=i, name="NVIDIA H200", memory_bytes=141 * GIB, **changes.pop(f"gpu{i}", {}))
            for i in range(num_gpus)
        ],
        gpu_links={a: {b: link for b in names if b != a} for a in names},
        driver_version="580" if num_gpus else None,
        torch_version=changes.pop("torch_version", "2.11.0"),
        nccl=LibraryRecord(path="/lib/libnccl.so.2", version="2.28.9", source="torch"),
        nccl_conf_files=changes.pop("nccl_conf_files", []),
        inherited_nccl=changes.pop("inherited_nccl", {}),
        num_hidden_gpus=changes.pop("num_hidden_gpus", 0),
    )
    known: dict[str, Any] = {
        "machine": machine,
        "compute_capability": "9.0",
        "p2p_status": {a: {b: "OK" for b in names if b != a} for a in names},
        "shm_total_bytes": 64 * GIB,
        "num_iommu_groups": 0,
        "torch_has_cuda": True,
    }
    return Facts(**{**known, **changes})


def finding(diagnosis: Diagnosis, topic: str) -> Finding:
    return next(f for f in diagnosis.findings if f.topic == topic)


def test_here_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "nccltune.diagnosis"
    assert {"machine", "engine", "abilities", "findings", "summary", "p2p_status"} <= set(document)
    assert sum(document["summary"].values()) == len(document["findings"])
    assert all(f["do"] for f in document["findings"] if f["status"] != "ok")


def test_here_for_people(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert run() == 0
    out = capsys.readouterr().out
    assert "no NVIDIA GPU" in out
    assert "scan --backend gloo" in out
    assert "\x1b[" not in out
    assert run("-q") == 0
    assert capsys.readouterr().out.count("\n") == out.count("\n"), "-q is about stderr: the answer is whole"


def test_doctor_does_not_import_torch() -> None:
    code = "import sys; from nccltune.cli import main\ntry: main(['doctor', '--json'])\nexcept SystemExit: print('torch' in sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip().endswith("False")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--engine-args", "'"], "--engine-args"),
        (["--topology", "no-such"], "no topology"),
        (["--model", "no-such-model"], "no model"),
        (["--libnccl", "/nonexistent.so"], "does not exist"),
    ],
)
def test_wrong_use(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*args) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_engine_of_another_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--topology", "rtx-pro-6000-x8", "--json") == 0
    assert json.loads(capsys.readouterr().out)["engine"]["nccl_settings_matter"] is True
    assert run("--topology", "h200-x8", "--json") == 0
    assert json.loads(capsys.readouterr().out)["engine"]["path"] == "custom"
    flags = "--disable-custom-all-reduce --enforce-disable-flashinfer-allreduce-fusion"
    assert run("--topology", "h200-x8", "--engine-args", flags, "--json") == 0
    assert json.loads(capsys.readouterr().out)["engine"]["path"] == "nccl"


def test_a_healthy_nvlink_machine_has_one_warning_the_engine() -> None:
    diagnosis = judge(facts(2))
    assert [f.topic for f in diagnosis.findings if f.status != "ok"] == ["engine"]
    assert "custom" in finding(diagnosis, "engine").what
    assert [a.possible for a in diagnosis.abilities if a.command == "scan --backend nccl"] == [True]


def test_engine_uses_what_is_installed_here() -> None:
    diagnosis = judge(facts(8, sglang_version="0.5.14", flashinfer_version=None), architecture="Qwen3MoeForCausalLM")
    assert diagnosis.engine is not None
    assert diagnosis.engine.path == "custom"  # without flashinfer there is no fusion
    fused = judge(facts(8, sglang_version="0.5.14", flashinfer_version="0.6.12"), architecture="Qwen3MoeForCausalLM")
    assert fused.engine is not None
    assert (fused.engine.path, fused.engine.certain) == ("flashinfer-fusion", True)


def test_pcie_pairs_beyond_nccls_level() -> None:
    """Eight cards across the CPU: the driver allows peer access and NCCL does not use it by default."""
    diagnosis = judge(facts(8, "PHB", cpu_vendor="amd", compute_capability="12.0"))
    found = finding(diagnosis, "peer access")
    assert found.status == "warning"
    assert "PXB" in found.what
    assert "--p2p-level SYS" in found.do
    assert diagnosis.engine is not None
    assert diagnosis.engine.nccl_settings_matter
    assert finding(judge(facts(8, "PIX")), "peer access").status == "ok"
    raised = facts(8, "PHB", inherited_nccl={"NCCL_P2P_LEVEL": "SYS"})
    assert finding(judge(raised), "peer access").status == "ok"


@pytest.mark.parametrize(
    ("num_gpus", "vendor", "env", "level"),
    [
        (2, "amd", {}, "SYS"),
        (2, "intel", {}, "PXB"),
        (4, "amd", {}, "PXB"),
        (4, "amd", {"NCCL_P2P_LEVEL": "4"}, "SYS"),
        (4, "amd", {"NCCL_P2P_LEVEL": "sys"}, "SYS"),
        (2, "amd", {"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS"}, "LOC"),
        (2, "amd", {"NCCL_P2P_DISABLE": "0"}, "SYS"),
    ],
)
def test_level_of_peer_access(num_gpus: int, vendor: str, env: dict[str, str], level: str) -> None:
    assert nccl_p2p_level(facts(num_gpus, cpu_vendor=vendor, inherited_nccl=env)) == level


def test_no_peer_access_at_all() -> None:
    status = {"GPU0": {"GPU1": "GNS"}, "GPU1": {"GPU0": "GNS"}}
    diagnosis = judge(facts(2, "PHB", p2p_status=status))
    assert "GPU0-GPU1 GNS (GPU not supported)" in finding(diagnosis, "peer access").what
    assert diagnosis.engine is not None
    assert diagnosis.engine.path == "nccl"  # the custom all-reduce needs peer access


@pytest.mark.parametrize(
    ("changes", "topic", "status", "said"),
    [
        ({"shm_free_bytes": 60 * MIB, "shm_total_bytes": 64 * MIB}, "/dev/shm", "warning", "--shm-size"),
        ({"shm_total_bytes": None}, "/dev/shm", "warning", "tmpfs"),
        ({"num_iommu_groups": 40}, "IOMMU, ACS", "warning", "iommu=pt"),
        ({"num_iommu_groups": 40, "iommu_options": ["iommu=pt"]}, "IOMMU, ACS", "ok", ""),
        ({"num_iommu_groups": 40, "is_virtual": True}, "IOMMU, ACS", "ok", ""),
        ({"acs_redirecting": ["0000:00:01.0"]}, "IOMMU, ACS", "warning", "ACS off"),
        ({"nccl_conf_files": ["/etc/nccl.conf"]}, "nccl.conf", "warning", "environment"),
        ({"inherited_nccl": {"NCCL_PROTO": "LL"}}, "NCCL_* set", "warning", "--set"),
        ({"torch_has_cuda": False}, "torch", "problem", "for CUDA"),
        ({"torch_version": "2.7.1+cu126"}, "torch", "problem", "torch 2.8 or later"),
        ({"mig_enabled": True}, "GPUs", "problem", "MIG"),
        ({"visible_devices": "0,1", "num_hidden_gpus": 6}, "GPUs", "warning", "CUDA_VISIBLE_DEVICES"),
        ({"sglang_nccl_so_path": "/other/libnccl.so.2"}, "libnccl", "warning", "/other/libnccl.so.2"),
        ({"gpu1": {"throttle_reasons": ["hw_thermal"]}}, "clocks", "warning", "cool"),
        ({"gpu0": {"num_processes": 2}}, "load", "warning", "stop"),
        ({"gpu0": {"used_memory_bytes": 70 * GIB}}, "load", "warning", "stop"),
    ],
)  # fmt: skip
def test_each_trouble(changes: dict[str, Any], topic: str, status: str, said: str) -> None:
    found = finding(judge(facts(2, **changes)), topic)
    assert found.status == status
    assert said in found.do
    if status != "ok":
        assert found.why


def test_misspelt_and_refused_variables_are_named() -> None:
    env = {"NCCL_PROTOO": "LL", "NCCL_NTHREADS": "100"}
    told = [f for f in judge(facts(2, inherited_nccl=env)).findings if f.topic == "NCCL_* set"]
    assert any("did you mean NCCL_PROTO?" in f.do for f in told)
    assert any(f.what == "NCCL_NTHREADS=100" for f in told)


def test_gpus_that_are_all_hidden_are_not_a_missing_driver() -> None:
    found = finding(judge(facts(0, visible_devices="MIG-1", num_hidden_gpus=8)), "GPUs")
    assert found.what == "CUDA_VISIBLE_DEVICES=MIG-1 hides all 8"
    assert "unset" in found.do


def test_nccl_tests_by_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "build" / "all_reduce_perf"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("NCCL_TESTS", str(tmp_path))
    assert find_nccl_tests() is None  # not executable
    program.chmod(0o755)
    assert find_nccl_tests() == str(program)
    monkeypatch.setenv("NCCL_TESTS", str(program))
    assert find_nccl_tests() == str(program)


def test_unknown_links_do_not_break_it() -> None:
    here = facts(2)
    silent = Facts(machine=here.machine.model_copy(update={"gpu_links": {"GPU0": {}, "GPU1": {}}}), torch_has_cuda=True)
    diagnosis = judge(silent)
    assert diagnosis.engine is None
    assert finding(diagnosis, "links").status == "warning"
    assert finding(diagnosis, "NUMA").status == "ok"
