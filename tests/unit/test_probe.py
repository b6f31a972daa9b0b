# ruff: noqa: N802, N815 - the fake has NVML's own names
"""The probe against a fake NVML: answers as drivers give them, and every way in which they give none."""

import hashlib
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nccltune.errors import InputError, MachineError
from nccltune.parse.toml_writer import to_toml
from nccltune.probe import collect_machine, detect, find_libnccl, gpu_state, host, match_topology, nccl
from nccltune.probe.gpus import GpuDetails, gpu_links, numa_node, p2p_status
from nccltune.probe.nvml import Nvml
from nccltune.probe.visible import read_visible, visible_gpus
from nccltune.registry import load_file
from nccltune.schemas.machine import GpuRecord, Machine


class NVMLError(Exception):
    """As pynvml raises it."""


def _not_supported(*_: Any) -> Any:
    raise NVMLError("Not Supported")


class FakeNvml(ModuleType):
    """A pynvml module for some GPUs of one kind; functions that it does not define are missing, as in old bindings."""

    NVML_NVLINK_MAX_LINKS = 18

    def __init__(
        self, name: str, num_gpus: int, *, nvlinks: int = 0, remote: int | None = 2, levels: Any = None
    ) -> None:
        super().__init__("pynvml")
        self.gpu_name, self.num_gpus, self.nvlinks, self.remote = name, num_gpus, nvlinks, remote
        self.levels = levels or (lambda i, j: 50)
        self.nvlink_p2p = 0

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return self.num_gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index + 100

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}-0123"

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return self.gpu_name.encode()

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95.05"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13000

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=150_754_820_096, used=4_194_304)

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"00000000:{handle:02X}:00.0")

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 76_543

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return 0x1 | 0x4  # idle, and held by the power cap

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return (9, 0)

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        return 1 if link < self.nvlinks else _not_supported()

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        return self.remote if self.remote is not None else _not_supported()

    def nvmlDeviceGetP2PStatus(self, a: int, b: int, index: int) -> int:
        return self.nvlink_p2p if index == 2 else 0

    def nvmlDeviceGetTopologyCommonAncestor(self, a: int, b: int) -> int:
        return self.levels(a - 100, b - 100)

    nvmlDeviceGetTemperature = _not_supported


def use(monkeypatch: pytest.MonkeyPatch, fake: ModuleType) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", fake)


@pytest.fixture
def h200s(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml("NVIDIA H200", 2, nvlinks=18)
    use(monkeypatch, fake)
    return fake


def test_machine_with_two_h200(h200s: FakeNvml) -> None:
    machine = collect_machine(torch_version="2.11.0+cu130")
    gpu = machine.gpus[0]
    assert [g.name for g in machine.gpus] == ["NVIDIA H200", "NVIDIA H200"]
    assert machine.gpu_links == {"GPU0": {"GPU1": "NV18"}, "GPU1": {"GPU0": "NV18"}}
    assert (machine.driver_version, machine.cuda_driver_version) == ("580.95.05", "13.0")
    assert machine.torch_version == "2.11.0+cu130"
    assert machine.topology == "h200-x2"
    assert (gpu.sm_clock_mhz, gpu.memory_clock_mhz, gpu.power_w) == (1980, 3201, 76.543)
    assert gpu.temperature_c is None  # not supported here
    assert gpu.num_processes is None  # a function that these bindings do not have
    assert gpu.throttle_reasons == ["sw_power_cap"]  # idle says nothing about a measurement


def test_without_nvml_everything_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("pynvml")
    fake.nvmlInit = _not_supported  # type: ignore[attr-defined]
    use(monkeypatch, fake)
    machine = collect_machine()
    assert machine.gpus == []
    assert machine.gpu_links == {}
    assert machine.driver_version is None
    assert machine.topology is None
    assert machine.num_cpus >= 1
    assert machine.memory_bytes > 0
    assert gpu_state([0, 1]) == []
    with Nvml() as nvml:
        assert nvml.why_not == "Not Supported"


def test_a_driver_that_answers_nothing_but_names(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("pynvml")
    fake.nvmlInit = lambda: None  # type: ignore[attr-defined]
    fake.nvmlDeviceGetCount = lambda: 2  # type: ignore[attr-defined]
    fake.nvmlDeviceGetHandleByIndex = lambda index: index  # type: ignore[attr-defined]
    use(monkeypatch, fake)
    machine = collect_machine()
    assert [gpu.name for gpu in machine.gpus] == ["unknown GPU", "unknown GPU"]
    assert machine.gpu_links == {"GPU0": {}, "GPU1": {}}
    assert machine.gpus[0].memory_bytes is None


def test_gpu_state_of_some_gpus(h200s: FakeNvml) -> None:
    assert [record.index for record in gpu_state([1])] == [1]
    assert [record.index for record in gpu_state([1, 7, -1])] == [1]
    assert len(gpu_state()) == 2


UUIDS = ["GPU-1a", "GPU-1b", "GPU-2a", "GPU-3a"]


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("0,1", [0, 1]),
        ("3,1", [3, 1]),
        (" 2 , 0", [2, 0]),
        ("1gpu,+2", [1, 2]),
        ("", []),
        ("-1", []),
        ("none", []),
        ("0,9,1", [0]),
        ("0,2,-1,1", [0, 2]),
        ("0,,1", [0]),
        ("0,1,0", []),
        ("GPU-2,GPU-1b", [2, 1]),
        ("GPU-1", []),  # two of them
        ("GPU-3,GPU-9,GPU-2", [3]),
        ("GPU-1a,GPU-1", [0]),
        ("GPU-3,GPU-3a", []),
        ("GPU-3,1", [3]),
        ("1,GPU-3", [1]),
        ("MIG-1a", []),
        ("0,MIG-GPU-1a/1/0", [0]),
    ],
)
def test_visible_devices_as_cuda_reads_them(text: str, indices: list[int]) -> None:
    assert read_visible(text, UUIDS) == indices


def test_only_visible_gpus_are_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA_VISIBLE_DEVICES=6,5 on eight GPUs: CUDA's device 0 is NVML's GPU 6."""
    use(monkeypatch, FakeNvml("NVIDIA H200", 8, nvlinks=18))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,5")
    machine = collect_machine()
    assert ([gpu.index for gpu in machine.gpus], machine.num_hidden_gpus) == ([6, 5], 6)
    assert machine.gpu_links == {"GPU6": {"GPU5": "NV18"}, "GPU5": {"GPU6": "NV18"}}
    assert machine.topology == "h200-x2"
    assert [record.index for record in gpu_state()] == [6, 5]
    assert [record.index for record in gpu_state((1, 2))] == [5]
    with Nvml() as nvml:
        assert p2p_status(nvml, [6, 5]) == {"GPU6": {"GPU5": "OK"}, "GPU5": {"GPU6": "OK"}}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-107,GPU-100")
    assert [gpu.index for gpu in collect_machine().gpus] == [7, 0]


def test_detection_is_of_the_visible_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeNvml("NVIDIA H200", 8, nvlinks=18))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert detect.detect_topology().num_gpus == 4
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(MachineError) as caught:
        detect.detect_topology()
    assert caught.value.why == "CUDA_VISIBLE_DEVICES hides 8"


def test_links_where_a_virtual_machine_hides_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml("NVIDIA H200", 2, nvlinks=18, remote=None)
    use(monkeypatch, fake)
    with Nvml() as nvml:
        assert gpu_links(nvml, visible_gpus(nvml))["GPU0"]["GPU1"] == "NV18"
    fake.nvlink_p2p = 5  # the driver says that these peers do not use NVLink
    with Nvml() as nvml:
        assert gpu_links(nvml, visible_gpus(nvml))["GPU0"]["GPU1"] == "SYS"


def test_links_joined_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four GPUs; each has 4 links to the next one in its pair, and none to the other pair."""
    fake = FakeNvml("NVIDIA A100-SXM4-80GB", 4, nvlinks=4, remote=0)
    fake.nvlink_p2p = 5
    partner = {100: 101, 101: 100, 102: 103, 103: 102}
    fake.nvmlDeviceGetNvLinkRemotePciInfo = lambda handle, link: fake.nvmlDeviceGetPciInfo(partner[handle])  # type: ignore[attr-defined]
    use(monkeypatch, fake)
    with Nvml() as nvml:
        links = gpu_links(nvml, visible_gpus(nvml))
    assert links["GPU0"] == {"GPU1": "NV4", "GPU2": "SYS", "GPU3": "SYS"}
    assert links["GPU3"]["GPU2"] == "NV4"


def test_links_on_pcie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cards behind two switches of one socket, as tests/data/topo/18."""
    use(
        monkeypatch,
        FakeNvml("NVIDIA RTX PRO 6000 Blackwell Server Edition", 8, levels=lambda i, j: 10 if i // 4 == j // 4 else 30),
    )
    with Nvml() as nvml:
        links = gpu_links(nvml, visible_gpus(nvml))
        status = p2p_status(nvml, visible_gpus(nvml))
    assert links["GPU0"]["GPU3"] == "PIX"
    assert links["GPU0"]["GPU4"] == "PHB"
    assert status["GPU7"]["GPU0"] == "OK"
    assert "GPU0" not in status["GPU0"]
    assert collect_machine().topology == "rtx-pro-6000-x8"


def test_topology_matches_by_name_and_count(h200s: FakeNvml) -> None:
    h200s.num_gpus = 3
    assert match_topology(collect_machine()) is None
    h200s.num_gpus = 8
    assert match_topology(collect_machine()) == "h200-x8"


@pytest.mark.parametrize(("text", "node"), [("1\n", 1), ("-1\n", None), ("", None)])
def test_numa_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, node: int | None) -> None:
    monkeypatch.setattr("nccltune.probe.gpus._SYSFS_PCI", tmp_path)
    (tmp_path / "0000:0f:00.0").mkdir()
    (tmp_path / "0000:0f:00.0" / "numa_node").write_text(text)
    assert numa_node("00000000:0F:00.0") == node
    assert numa_node("00000000:10:00.0") is None
    assert numa_node(None) is None


# --- libnccl -------------------------------------------------------------------------------------------------------


def test_libnccl_of_torch_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel, system = tmp_path / "wheel" / "lib", tmp_path / "system"
    for folder in (wheel, system):
        folder.mkdir(parents=True)
        (folder / "libnccl.so.2").write_bytes(folder.name.encode())
    monkeypatch.setenv("LD_LIBRARY_PATH", str(system))
    monkeypatch.setattr(nccl, "package_folders", lambda name: [wheel.parent] if name == "nvidia.nccl" else [])
    found = find_libnccl(with_version=False)
    assert (found.path, found.source) == (str(wheel / "libnccl.so.2"), "torch")
    assert found.sha256_16 == hashlib.sha256(b"lib").hexdigest()[:16]
    monkeypatch.setattr(nccl, "package_folders", lambda name: [])
    assert find_libnccl(with_version=False).source == "system"


def test_libnccl_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "_candidates", lambda: iter([(Path("/nonexistent/libnccl.so.2"), "system")]))
    with pytest.raises(MachineError) as caught:
        find_libnccl()
    assert caught.value.exit_code == 5


def test_explicit_libnccl_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        find_libnccl(str(tmp_path / "libnccl.so.2"))
    (tmp_path / "libnccl.so.2").write_text("not a library")
    with pytest.raises(InputError, match="is no NCCL library"):
        find_libnccl(str(tmp_path / "libnccl.so.2"))


@pytest.mark.parametrize(("code", "text"), [(22809, "2.28.9"), (23007, "2.30.7"), (2708, "2.7.8"), (20903, "2.9.3")])
def test_version_numbers(code: int, text: str) -> None:
    assert nccl.version_text(code) == text


# --- host ----------------------------------------------------------------------------------------------------------


def test_only_nccl_variables_and_no_secrets() -> None:
    environ = {
        "NCCL_PROTO": "LL",
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
        "NCCL_TUNER_CONFIG_FILE": "/opt/a-long-folder-name-with-a-version-2.30/tuner.csv",
        "NCCL_PLUGIN_TOKEN": "x",
        "NCCL_NET": "0123456789abcdef0123456789abcdef",
        "HF_TOKEN": "hf_secret",
    }
    assert host.inherited_nccl(environ) == {
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
        "NCCL_NET": host.MASKED,
        "NCCL_PLUGIN_TOKEN": host.MASKED,
        "NCCL_PROTO": "LL",
        "NCCL_TUNER_CONFIG_FILE": "/opt/a-long-folder-name-with-a-version-2.30/tuner.csv",
    }


def test_conf_files_without_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NCCL_CONF_FILE", raising=False)
    assert str(tmp_path) not in " ".join(collect_machine().nccl_conf_files)
    (tmp_path / ".nccl.conf").write_text("NCCL_PROTO=LL\n")
    assert collect_machine().nccl_conf_files[0] == "~/.nccl.conf"
    (tmp_path / "other.conf").write_text("")
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "other.conf"))
    assert host.nccl_conf_files()[0] == tmp_path / "other.conf"


def test_hostname_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.node", lambda: "secret-host")
    # First eight digits of: printf secret-host | sha256sum
    assert host.hostname_hash() == hashlib.sha256(b"secret-host").hexdigest()[:8]
    assert "secret" not in collect_machine().model_dump_json()


def test_acs_is_read_from_configuration_space(tmp_path: Path) -> None:
    """Two bridges: an extended capability list AER (0x0001) at 0x100 -> ACS (0x000D) at 0x148, control at +6."""

    def bridge(name: str, control: int) -> None:
        space = bytearray(4096)
        space[0x100:0x104] = (0x148 << 20 | 1 << 16 | 0x0001).to_bytes(4, "little")
        space[0x148:0x14C] = (0 << 20 | 1 << 16 | 0x000D).to_bytes(4, "little")
        space[0x14E:0x150] = control.to_bytes(2, "little")
        folder = tmp_path / name
        folder.mkdir()
        (folder / "class").write_text("0x060400\n")
        (folder / "config").write_bytes(space)

    bridge("0000:00:01.0", 0x1D)  # source validation, request and completion redirect, upstream forwarding
    bridge("0000:00:02.0", 0x00)
    assert host.acs_redirecting(tmp_path) == ["0000:00:01.0"]


def test_acs_not_visible_without_root(tmp_path: Path) -> None:
    (tmp_path / "0000:00:01.0").mkdir()
    (tmp_path / "0000:00:01.0" / "class").write_text("0x060400\n")
    (tmp_path / "0000:00:01.0" / "config").write_bytes(bytes(64))
    assert host.acs_redirecting(tmp_path) is None
    assert host.acs_redirecting(tmp_path / "missing") is None


# --- detect --------------------------------------------------------------------------------------------------------


def details(**changes: Any) -> GpuDetails:
    known: dict[str, Any] = {
        "compute_capability": "8.9",
        "memory_bus_bits": 384,
        "max_memory_clock_mhz": 10501,
        "max_sm_clock_mhz": 2520,
        "pcie_generation": 4,
        "pcie_width": 16,
    }
    return GpuDetails(**{**known, **changes})


def records(name: str, count: int) -> list[GpuRecord]:
    return [GpuRecord(index=i, name=name, memory_bytes=25_757_220_864) for i in range(count)]


def full(count: int, name: str) -> dict[str, dict[str, str]]:
    return {f"GPU{i}": {f"GPU{j}": name for j in range(count) if j != i} for i in range(count)}


def test_unknown_gpu_is_computed_and_says_so() -> None:
    found = detect.build_topology(records("NVIDIA GeForce RTX 4090", 2), details(), full(2, "PHB"), (75_497_472, 128))
    # 10501 MHz x 2 x 384 bit / 8 = 1008 GB/s; 128 SM x 2520 MHz x 1024 / 2 (GeForce) = 165.2 TFLOP/s;
    # 16e9 x 128/130 / 8 x 16 = 31.5 GB/s
    assert found.gpu.memory_bandwidth_bytes_per_s == pytest.approx(1008.096e9)
    assert found.gpu.bf16_flop_per_s == pytest.approx(165.15e12, rel=1e-3)
    assert found.gpu.l2_bytes == 75_497_472
    assert found.links.bandwidth_bytes_per_s == pytest.approx(31.5e9, rel=1e-3)
    assert (found.name, found.links.kind, found.links.worst_gpu_link) == ("geforce-rtx-4090-x2", "pcie", "PHB")
    assert sum("computed" in source for source in found.source) == 2


def test_known_gpu_takes_its_file_and_the_machine_s_links() -> None:
    found = detect.build_topology(
        records("NVIDIA H200", 2),
        details(compute_capability="9.0", memory_bus_bits=6144, max_memory_clock_mhz=3201),
        full(2, "NV18"),
        None,
    )
    assert found.gpu.memory_bandwidth_bytes_per_s == 4.8e12
    assert found.links.bandwidth_bytes_per_s == 450e9  # 18 links x 25 GB/s
    assert found.name == "h200-x2-local"  # never hides the shipped file
    assert any("4917 GB/s" in source for source in found.source)  # 3201 MHz x 2 x 6144 bit / 8


def test_one_pair_without_nvlink_makes_it_pcie() -> None:
    links = full(4, "NV4")
    links["GPU0"]["GPU2"] = links["GPU2"]["GPU0"] = "SYS"
    assert detect.build_topology(records("NVIDIA H200", 4), details(), links, None).links.kind == "pcie"


@pytest.mark.parametrize(
    ("name", "known", "l2_and_sms", "links"),
    [
        ("NVIDIA Z1", details(max_memory_clock_mhz=None), (1, 1), "PIX"),
        ("NVIDIA Z1", details(), None, "PIX"),
        ("NVIDIA Z1", details(compute_capability="99.0"), (1, 1), "PIX"),
        ("NVIDIA H200", details(pcie_generation=None), None, "PIX"),
    ],
)
def test_what_is_not_told_is_not_invented(name: str, known: GpuDetails, l2_and_sms: Any, links: str) -> None:
    with pytest.raises(MachineError) as caught:
        detect.build_topology(records(name, 2), known, full(2, links), l2_and_sms)
    assert "by hand" in caught.value.do


def test_detected_file_reads_back(tmp_path: Path) -> None:
    found = detect.build_topology(records("NVIDIA H200", 2), details(compute_capability="9.0"), full(2, "NV18"), None)
    path = tmp_path / "mine.toml"
    path.write_text(to_toml(found, "Two lines\nof comment"))
    assert path.read_text().startswith("# Two lines\n# of comment\nschema = ")
    assert load_file(path, "topology") == found


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "topology").glob("*.toml")), ids=lambda p: p.stem)
def test_writing_a_shipped_file_keeps_every_figure(path: Path) -> None:
    loaded = load_file(path, "topology")
    assert tomllib.loads(to_toml(loaded)) == tomllib.loads(path.read_text())  # type: ignore[arg-type]


def test_a_machine_is_named_by_what_is_known_of_it():
    machine = Machine(hostname_hash="h", os="Linux", kernel="6", python="3.11", cpu_model="AMD EPYC", num_cpus=8, memory_bytes=1)  # fmt: skip
    assert machine.fingerprint == "AMD EPYC, no GPU; host h"
    known = machine.model_copy(update={"driver_version": "580.95"})
    assert known.fingerprint == "AMD EPYC, no GPU; driver 580.95; host h"
