"""Checks of GPUs, links, peer access and their state. Facts in, findings out."""

from collections import Counter
from collections.abc import Iterator

from nccltune.doctor.facts import Facts
from nccltune.doctor.findings import Finding, ok, problem, warning
from nccltune.parse.topo import P2P_STATUS, link_rank, worst_link
from nccltune.units import GIB

_LISTED = 4
# Memory that a context or a display takes; more than this is somebody's work.
_IDLE_MEMORY_BYTES = 2 * GIB


def hardware_findings(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about the GPUs; one finding says it all where there is none."""
    if not facts.machine.gpus:
        yield _no_gpu(facts)
        return
    yield _gpus(facts)
    if len(facts.machine.gpus) > 1:
        yield _links(facts)
        yield _peer_access(facts)
    yield _numa(facts)
    yield from _state(facts)


def nccl_p2p_level(facts: Facts) -> str:
    """Return how far apart two GPUs may be for NCCL to use peer access, unless the environment says otherwise.

    NCCL 2.30 (src/graph/paths.cc): PXB, and SYS for up to two GPUs of an AMD host; NCCL_P2P_LEVEL overrides it.
    """
    if facts.machine.inherited_nccl.get("NCCL_P2P_DISABLE", "0") not in ("0", ""):
        return "LOC"
    default = "SYS" if facts.cpu_vendor == "amd" and len(facts.machine.gpus) <= 2 else "PXB"
    level = facts.machine.inherited_nccl.get("NCCL_P2P_LEVEL", default).upper()
    legacy = {"0": "LOC", "1": "NVL", "2": "PIX", "3": "PHB", "4": "SYS", "5": "SYS"}
    return legacy.get(level, level)


def _no_gpu(facts: Facts) -> Finding:
    if facts.machine.num_hidden_gpus:
        return warning(
            "GPUs",
            f"CUDA_VISIBLE_DEVICES={facts.visible_devices} hides all {facts.machine.num_hidden_gpus}",
            "it names no whole GPU (a MIG instance is none), or one of them twice",
            "unset CUDA_VISIBLE_DEVICES to use all",
        )
    return warning(
        "GPUs",
        "no NVIDIA GPU",
        facts.nvml_why_not or "NVML sees none",
        "on a GPU machine: install the driver, or start the container with --gpus all",
    )


def _gpus(facts: Facts) -> Finding:
    machine = facts.machine
    kinds = Counter(gpu.name for gpu in machine.gpus)
    names = ", ".join(f"{count}x {name}" for name, count in kinds.items())
    memory = machine.gpus[0].memory_bytes
    what = names + (f", {memory / GIB:.0f} GiB" if memory else "")
    what += f", compute capability {facts.compute_capability}" if facts.compute_capability else ""
    if facts.mig_enabled:
        return problem(
            "GPUs", f"{what}; MIG is on", "NCCL has no peer access between MIG instances", "switch MIG off for serving"
        )
    if len(kinds) > 1:
        return warning(
            "GPUs", what, "the slowest GPU decides every all-reduce", "hide the others with CUDA_VISIBLE_DEVICES"
        )
    if machine.num_hidden_gpus:
        return warning(
            "GPUs",
            f"{what}; CUDA_VISIBLE_DEVICES={facts.visible_devices} hides {machine.num_hidden_gpus} more",
            "nccltune and the engine use only those",
            "unset CUDA_VISIBLE_DEVICES to use all",
        )
    return ok("GPUs", what)


def _links(facts: Facts) -> Finding:
    names = [name for row in facts.machine.gpu_links.values() for name in row.values()]
    if not names:
        return warning(
            "links",
            "the links between the GPUs are not known",
            "NVML does not tell, as in some virtual machines",
            "see the transports in NCCL's own log: NCCL_DEBUG=INFO",
        )
    kinds = sorted(set(names), key=link_rank)
    matched = f"; matches topology file {facts.machine.topology}" if facts.machine.topology else ""
    return ok("links", f"{', '.join(kinds)} (worst {worst_link(names)}){matched}")


def _peer_access(facts: Facts) -> Finding:
    bad = [
        f"{a}-{b} {code}" for a, row in facts.p2p_status.items() for b, code in row.items() if code != "OK" and a < b
    ]
    if bad:
        codes = sorted({entry.split()[-1] for entry in bad})
        return warning(
            "peer access",
            f"not available: {_some(bad)} ({', '.join(P2P_STATUS.get(code, code) for code in codes)})",
            "NCCL sends these pairs through host shared memory; settings matter most there",
            "consumer GPUs have none; otherwise check driver, IOMMU and virtual machine settings",
        )
    level = nccl_p2p_level(facts)
    if level == "LOC":
        return warning(
            "peer access",
            "switched off by NCCL_P2P_DISABLE or NCCL_P2P_LEVEL",
            "NCCL sends everything through host memory",
            "unset it, or let a scan compare both",
        )
    far = [
        f"{a}-{b} {name}"
        for a, row in facts.machine.gpu_links.items()
        for b, name in row.items()
        if a < b and not _within(name, level)
    ]
    if far:
        return warning(
            "peer access",
            f"the driver allows it, NCCL's level {level} does not use it for {_some(far)}",
            "those pairs go through host memory",
            "let 'nccltune scan --p2p-level SYS' measure it; keep it only where it gains",
        )
    if not facts.p2p_status:
        return ok("peer access", f"the driver does not tell; NCCL's level is {level}, and all pairs are within it")
    return ok("peer access", f"works between all pairs, and NCCL's level {level} uses it")


def _within(link: str, level: str) -> bool:
    if level == "NVL":
        return link.startswith("NV")
    return link_rank(link) <= link_rank(level)


def _numa(facts: Facts) -> Finding:
    nodes = {f"GPU{gpu.index}": gpu.numa_node for gpu in facts.machine.gpus}
    known = {node for node in nodes.values() if node is not None}
    if not known:
        return ok("NUMA", "not told (usual in virtual machines)")
    by_node = "; ".join(f"node {node}: {' '.join(g for g, n in nodes.items() if n == node)}" for node in sorted(known))
    if len(known) > 1:
        return ok("NUMA", f"{by_node}; pairs across nodes are the slow ones of a ring")
    return ok("NUMA", by_node)


def _state(facts: Facts) -> Iterator[Finding]:
    hot = [f"GPU{g.index} {'+'.join(g.throttle_reasons)}" for g in facts.machine.gpus if g.throttle_reasons]
    if hot:
        yield warning(
            "clocks",
            f"held down: {_some(hot)}",
            "times will drift and a prediction from them is off",
            "let the GPUs cool, check power limits and locked clocks",
        )
    busy = [
        f"GPU{g.index}" + (f" ({g.num_processes} processes)" if g.num_processes else "")
        for g in facts.machine.gpus
        if g.num_processes or (g.used_memory_bytes or 0) > _IDLE_MEMORY_BYTES
    ]
    if busy:
        yield warning(
            "load",
            f"in use: {_some(busy)}",
            "a scan beside other work measures that work too",
            "stop the other processes before a scan",
        )


def _some(entries: list[str]) -> str:
    more = len(entries) - _LISTED
    return ", ".join(entries[:_LISTED]) + (f" and {more} more" if more > 0 else "")
