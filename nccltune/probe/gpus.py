"""GPUs, their state and how they reach each other, through NVML. Absent facts are None."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nccltune.probe.nvml import Nvml
from nccltune.probe.visible import visible_gpus
from nccltune.schemas.machine import GpuRecord

# NVML's distance between two GPUs, as nvidia-smi topo -m writes it. 0 is two GPUs of one board behind its own switch.
_ANCESTOR = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_P2P_STATUS = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
_P2P_READ, _P2P_NVLINK = 0, 2
_SWITCH = 2
_MAX_NVLINKS = 36
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_SYSFS_PCI = Path("/sys/bus/pci/devices")

# nvml.h, nvmlClocksEventReasons. Idle (bit 0) is left out: it says nothing about a measurement.
_THROTTLE = {
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clock",
}


@dataclass(frozen=True, slots=True)
class GpuDetails:
    """What a topology file needs to know about one GPU beyond its record."""

    compute_capability: str | None
    memory_bus_bits: int | None
    max_memory_clock_mhz: int | None
    max_sm_clock_mhz: int | None
    pcie_generation: int | None
    pcie_width: int | None
    mig_enabled: bool | None = None


def gpu_state(devices: Sequence[int] | None = None) -> list[GpuRecord]:
    """Return clocks, temperature, power, throttling, memory and processes of some GPUs now (all visible ones by default).

    ``devices`` are CUDA's numbers, as the ranks have them; a record has NVML's. Those that do not exist are left out. Cheap
    enough to call before and after a scan: a few milliseconds a GPU. Empty without a driver.
    """
    with Nvml() as nvml:
        visible = visible_gpus(nvml)
        wanted = range(len(visible)) if devices is None else devices
        return gpu_records(nvml, [visible[device] for device in wanted if 0 <= device < len(visible)])


def gpu_records(nvml: Nvml, indices: Sequence[int]) -> list[GpuRecord]:
    """Return one record for each of some GPUs of an open session, by NVML's number."""
    return [_record(nvml, index) for index in indices]


def gpu_details(nvml: Nvml, index: int) -> GpuDetails:
    """Return the details of one GPU."""
    handle = nvml.handle(index)
    capability = nvml.ask("nvmlDeviceGetCudaComputeCapability", handle)
    mig = nvml.ask("nvmlDeviceGetMigMode", handle)
    return GpuDetails(
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
        memory_bus_bits=nvml.whole("nvmlDeviceGetMemoryBusWidth", handle),
        max_memory_clock_mhz=nvml.whole("nvmlDeviceGetMaxClockInfo", handle, _CLOCK_MEMORY),
        max_sm_clock_mhz=nvml.whole("nvmlDeviceGetMaxClockInfo", handle, _CLOCK_SM),
        pcie_generation=nvml.whole("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        pcie_width=nvml.whole("nvmlDeviceGetMaxPcieLinkWidth", handle),
        mig_enabled=bool(mig[0]) if isinstance(mig, list | tuple) and mig else None,
    )


def gpu_links(nvml: Nvml, indices: Sequence[int]) -> dict[str, dict[str, str]]:
    """Return how each pair of some GPUs is joined, in the words of ``nvidia-smi topo -m``; unknown pairs are left out."""
    handles = {index: nvml.handle(index) for index in indices}
    nvlinks = {index: _nvlinks(nvml, handle) for index, handle in handles.items()}
    links: dict[str, dict[str, str]] = {f"GPU{i}": {} for i in indices}
    for i, j in itertools.combinations(indices, 2):
        name = _pair(nvml, handles[i], handles[j], nvlinks[i], nvlinks[j])
        if name is not None:
            links[f"GPU{i}"][f"GPU{j}"] = links[f"GPU{j}"][f"GPU{i}"] = name
    return links


def p2p_status(nvml: Nvml, indices: Sequence[int]) -> dict[str, dict[str, str]]:
    """Return the driver's peer-access status of each pair: ``OK``, ``CNS``, ``GNS``, ``TNS``, ``NS``, ``DR`` or ``U``."""
    handles = {index: nvml.handle(index) for index in indices}
    status: dict[str, dict[str, str]] = {f"GPU{i}": {} for i in indices}
    for i, j in itertools.permutations(indices, 2):
        code = nvml.whole("nvmlDeviceGetP2PStatus", handles[i], handles[j], _P2P_READ)
        if code is not None:
            status[f"GPU{i}"][f"GPU{j}"] = _P2P_STATUS.get(code, "U")
    return status


def numa_node(bus_id: str | None) -> int | None:
    """Return the NUMA node of a PCI device by sysfs; None where the kernel does not know it (-1, virtual machines)."""
    if not bus_id:
        return None
    # NVML writes 00000000:0F:00.0, the kernel 0000:0f:00.0.
    name = bus_id.lower()[4:] if len(bus_id.split(":", 1)[0]) == 8 else bus_id.lower()
    try:
        node = int((_SYSFS_PCI / name / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _record(nvml: Nvml, index: int) -> GpuRecord:
    handle = nvml.handle(index)
    memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
    power_mw = nvml.whole("nvmlDeviceGetPowerUsage", handle)
    processes = nvml.ask("nvmlDeviceGetComputeRunningProcesses", handle)
    bus_id = _bus_id(nvml.ask("nvmlDeviceGetPciInfo", handle))
    return GpuRecord(
        index=index,
        name=nvml.text("nvmlDeviceGetName", handle) or "unknown GPU",
        memory_bytes=int(memory.total) if memory is not None else None,
        pci_bus_id=bus_id,
        numa_node=numa_node(bus_id),
        sm_clock_mhz=nvml.whole("nvmlDeviceGetClockInfo", handle, _CLOCK_SM),
        memory_clock_mhz=nvml.whole("nvmlDeviceGetClockInfo", handle, _CLOCK_MEMORY),
        temperature_c=nvml.whole("nvmlDeviceGetTemperature", handle, 0),
        power_w=power_mw / 1000 if power_mw is not None else None,
        throttle_reasons=_throttle_reasons(nvml, handle),
        used_memory_bytes=int(memory.used) if memory is not None else None,
        num_processes=len(processes) if processes is not None else None,
    )


def _throttle_reasons(nvml: Nvml, handle: Any) -> list[str]:
    mask = nvml.whole("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if mask is None:  # the name before driver 535
        mask = nvml.whole("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return [name for bit, name in _THROTTLE.items() if (mask or 0) & bit]


def _nvlinks(nvml: Nvml, handle: Any) -> list[tuple[int | None, str | None]]:
    """Remote device type and bus id of each active NVLink of one GPU."""
    active = []
    for link in range(nvml.constant("NVML_NVLINK_MAX_LINKS", _MAX_NVLINKS)):
        if nvml.whole("nvmlDeviceGetNvLinkState", handle, link) == 1:
            kind = nvml.whole("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            active.append((kind, _bus_id(nvml.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link))))
    return active


def _pair(
    nvml: Nvml,
    a: Any,
    b: Any,
    links_a: list[tuple[int | None, str | None]],
    links_b: list[tuple[int | None, str | None]],
) -> str | None:
    """NVLinks that lead to the other GPU, or to a switch that both are on; otherwise the distance on PCIe."""
    other = _bus_id(nvml.ask("nvmlDeviceGetPciInfo", b))
    direct = sum(1 for _, bus_id in links_a if bus_id is not None and bus_id == other)
    if direct:
        return f"NV{direct}"
    switched = min(sum(1 for kind, _ in links if kind == _SWITCH) for links in (links_a, links_b))
    if switched:
        return f"NV{switched}"
    # Virtual machines hide what is at the other end of a link; the driver still tells that peers use NVLink.
    if links_a and links_b and nvml.whole("nvmlDeviceGetP2PStatus", a, b, _P2P_NVLINK) == 0:
        return f"NV{min(len(links_a), len(links_b))}"
    level = nvml.whole("nvmlDeviceGetTopologyCommonAncestor", a, b)
    return _ANCESTOR.get(level) if level is not None else None


def _bus_id(pci: Any) -> str | None:
    bus_id = getattr(pci, "busId", None)
    if isinstance(bus_id, bytes):
        bus_id = bus_id.decode("ascii", "replace")
    return bus_id.lower() if bus_id else None
