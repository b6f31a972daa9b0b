"""Write down the machine at hand as a topology: links from NVML, GPU figures from a shipped file or from NVML's own."""

import re
from collections.abc import Mapping, Sequence

from nccltune.errors import MachineError
from nccltune.parse.topo import worst_link
from nccltune.probe.cuda import l2_and_sm_count
from nccltune.probe.gpus import GpuDetails, gpu_details, gpu_links, gpu_records
from nccltune.probe.machine import known_topologies
from nccltune.probe.nvml import Nvml
from nccltune.probe.visible import VARIABLE, visible_gpus
from nccltune.schemas.machine import GpuRecord
from nccltune.schemas.topology import Gpu, Links, Topology

# Bytes/s of one PCIe lane, one way: transfers/s x coding / 8. 5.0 x16 = 32e9 x 128/130 / 8 x 16 = 63.0 GB/s.
_PCIE_LANE = {1: 2.5e9 * 0.8 / 8, 2: 5e9 * 0.8 / 8, 3: 8e9 * 128 / 130 / 8, 4: 16e9 * 128 / 130 / 8, 5: 32e9 * 128 / 130 / 8,
              6: 64e9 * 242 / 256 / 8}  # fmt: skip
# Dense BF16 operations per clock and SM with FP32 accumulation, from NVIDIA's architecture white papers: A100 312e12 =
# 108 SM x 1410 MHz x 2048; H100 989e12 = 132 x 1830 x 4096; B200 2250e12 = 148 x 1855 x 8192; RTX PRO 6000 503.8e12 =
# 188 x 2617 x 1024. GeForce cards run at half of their generation's rate.
_FLOP_PER_CLOCK = {"8.0": 2048, "8.6": 1024, "8.9": 1024, "9.0": 4096, "10.0": 8192, "10.3": 8192, "12.0": 1024}
_BY_HAND = "write the file by hand ('nccltune topology show h200-x8' shows one) and add it with 'nccltune topology add'"


def detect_topology() -> Topology:
    """Return this machine's topology; raises MachineError without a GPU or where NVML leaves out what a file needs."""
    with Nvml() as nvml:
        visible = visible_gpus(nvml)
        if not visible:
            hidden = f"{VARIABLE} hides {nvml.num_gpus()}" if nvml.num_gpus() else "NVML sees no GPU"
            raise MachineError(
                "this machine has no NVIDIA GPU to detect",
                nvml.why_not or hidden,
                "run it on the GPU machine, in a container with --gpus all, or choose one of 'nccltune topology list'",
            )
        records, details = gpu_records(nvml, visible), gpu_details(nvml, visible[0])
        return build_topology(records, details, gpu_links(nvml, visible), l2_and_sm_count())


def build_topology(
    records: Sequence[GpuRecord],
    details: GpuDetails,
    links: Mapping[str, Mapping[str, str]],
    l2_and_sms: tuple[int, int] | None,
) -> Topology:
    """Put a topology together from what NVML and the driver told; GPUs of several kinds raise MachineError."""
    models = sorted({record.name for record in records})
    if len(models) > 1:
        raise MachineError(
            "this machine has GPUs of several kinds", f"found {', '.join(models)}", "hide the others, or " + _BY_HAND
        )
    gpu, source = _gpu(records[0], details, l2_and_sms)
    link, link_source = _links(links, len(records), details)
    known = {name for name, _ in known_topologies()}
    name = f"{_slug(gpu.name)}-x{len(records)}"
    return Topology(
        name=f"{name}-local" if name in known else name,
        title=f"{len(records)}x {gpu.name} (detected)",
        num_gpus=len(records),
        gpu=gpu,
        links=link,
        source=[*source, link_source],
    )


def _gpu(record: GpuRecord, details: GpuDetails, l2_and_sms: tuple[int, int] | None) -> tuple[Gpu, list[str]]:
    """Figures of a known GPU from its file; otherwise what clocks and widths give."""
    measured = _memory_bandwidth(details)
    for name, topology in known_topologies():
        if record.name in topology.gpu.nvml_names:
            source = [f"GPU figures: topology file {name} ({topology.source[0]})"]
            if measured is not None:
                source.append(f"NVML's memory clock and bus width give {measured / 1e9:.0f} GB/s on this machine")
            return topology.gpu.model_copy(update={"nvml_names": [record.name]}), source
    return _computed_gpu(record, details, l2_and_sms, measured)


def _computed_gpu(
    record: GpuRecord, details: GpuDetails, l2_and_sms: tuple[int, int] | None, bandwidth: float | None
) -> tuple[Gpu, list[str]]:
    capability = details.compute_capability
    per_clock = _FLOP_PER_CLOCK.get(capability or "")
    clock, memory = details.max_sm_clock_mhz, record.memory_bytes
    if not (bandwidth and l2_and_sms and per_clock and clock and memory and capability):
        raise MachineError(
            f"the figures of {record.name} are not known",
            "no topology file has this GPU, and the driver does not tell its memory clock, bus width, L2 size and SM count",
            _BY_HAND,
        )
    if "GeForce" in record.name:
        per_clock //= 2
    l2_bytes, num_sms = l2_and_sms
    gpu = Gpu(
        name=record.name.removeprefix("NVIDIA ").strip(),
        nvml_names=[record.name],
        memory_bytes=memory,
        memory_bandwidth_bytes_per_s=bandwidth,
        l2_bytes=l2_bytes,
        bf16_flop_per_s=float(num_sms * per_clock) * clock * 1e6,
        compute_capability=capability,
    )
    return gpu, [
        f"memory bandwidth: computed, NVML memory clock {details.max_memory_clock_mhz} MHz x 2 x bus width {details.memory_bus_bits} bit / 8",
        f"BF16 rate: computed, {num_sms} SM x {clock} MHz (highest clock) x {per_clock} operations of compute capability {capability}",
        "memory and L2 sizes: NVML and the CUDA driver",
    ]


def _memory_bandwidth(details: GpuDetails) -> float | None:
    """Bytes/s from clock and bus width, two transfers a clock as NVML counts: H100 2619 MHz x 2 x 5120 bit / 8 = 3352 GB/s."""
    if not details.max_memory_clock_mhz or not details.memory_bus_bits:
        return None
    return details.max_memory_clock_mhz * 1e6 * 2 * details.memory_bus_bits / 8


def _links(links: Mapping[str, Mapping[str, str]], num_gpus: int, details: GpuDetails) -> tuple[Links, str]:
    """NVLink only where every pair has it: one pair without would carry the ring."""
    names = [name for row in links.values() for name in row.values()]
    worst = worst_link(names) or ""
    all_pairs = len(names) == num_gpus * (num_gpus - 1) and num_gpus > 1
    if all_pairs and worst.startswith("NV"):
        num_links = int(worst[2:])
        # One NVLink is 25 GB/s each way from NVLink 2 to 4, and 50 GB/s on Blackwell (NVLink 5).
        per_link = 50e9 if int((details.compute_capability or "0").split(".")[0]) >= 10 else 25e9
        return (
            Links(
                kind="nvlink",
                name=f"NVLink, {num_links} links",
                bandwidth_bytes_per_s=num_links * per_link,
                worst_gpu_link=worst,
            ),
            f"links: NVML, {num_links} links x {per_link / 1e9:.0f} GB/s each way",
        )
    lane = _PCIE_LANE.get(details.pcie_generation or 0)
    if lane is None or not details.pcie_width:
        raise MachineError("NVML does not tell the PCIe link of this GPU", "a virtual machine may hide it", _BY_HAND)
    generation, width = details.pcie_generation, details.pcie_width
    return (
        Links(
            kind="pcie",
            name=f"PCIe {generation}.0 x{width}",
            bandwidth_bytes_per_s=round(lane * width),
            worst_gpu_link=worst,
        ),
        f"links: NVML, PCIe {generation}.0 x{width}, one way; worst pair of GPUs {worst or 'not known'}",
    )


def _slug(name: str) -> str:
    name = re.sub(r"\b(SXM\d?|Workstation Edition|Server Edition|Blackwell)\b", "", name)
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
