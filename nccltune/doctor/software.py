"""Checks of libraries, tools, shared memory, IOMMU and what NCCL would read by itself. Facts in, findings out."""

from collections.abc import Iterator

from nccltune import knobs
from nccltune.doctor.facts import Facts
from nccltune.doctor.findings import Finding, ok, problem, warning
from nccltune.probe.torch_version import is_too_old, oldest
from nccltune.units import MIB

# One direction of one channel between two ranks through shared memory: LL 512 KiB + LL128 4.7 MiB + Simple 4 MiB
# (NCCL's default buffers), about 10 MiB; a ring over N GPUs has N of them a channel, and NCCL starts with 2 to 4 channels.
_SHM_PER_RANK_BYTES = 4 * 10 * MIB
_SHM_LEAST_BYTES = 128 * MIB  # above docker's default of 64 MiB in any case


def software_findings(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about software and host."""
    yield _libnccl(facts)
    if facts.machine.gpus:
        yield _driver(facts)
    yield _torch(facts)
    yield _nccl_tests(facts)
    yield _sglang(facts)
    yield _shm(facts)
    if len(facts.machine.gpus) > 1:
        yield _iommu(facts)
    yield _conf_files(facts)
    yield from _environment(facts)


def _libnccl(facts: Facts) -> Finding:
    library = facts.machine.nccl
    if library is None:
        told = warning if not facts.machine.gpus else problem
        return told(
            "libnccl",
            "not found",
            "it comes with torch for CUDA (nvidia-nccl wheel)",
            "install torch for CUDA, or give --libnccl PATH",
        )
    what = f"{library.version} ({library.source}), {library.path}"
    served = facts.sglang_nccl_so_path
    if served and served != library.path:
        return warning(
            "libnccl",
            what,
            f"SGLANG_NCCL_SO_PATH makes SGLang use another one: {served}",
            f"measure that one: --libnccl {served}",
        )
    return ok("libnccl", what)


def _driver(facts: Facts) -> Finding:
    machine = facts.machine
    cuda = f", CUDA {machine.cuda_driver_version}" if machine.cuda_driver_version else ""
    return ok("driver", f"{machine.driver_version or 'version not told'}{cuda}")


def _torch(facts: Facts) -> Finding:
    version = facts.machine.torch_version
    if version is None:
        return warning(
            "torch", "not installed", "back ends nccl, torch and gloo need it", "pip install 'nccltune[torch]'"
        )
    if facts.machine.gpus and not facts.torch_has_cuda:
        return problem(
            "torch",
            f"{version}, a build for CPUs only",
            "the GPUs of this machine cannot be measured with it",
            "install torch for CUDA",
        )
    if facts.machine.gpus and is_too_old(version):
        return problem(
            "torch",
            f"{version}, before {oldest()}",
            "it does not tell which kernels a CUDA graph holds: back ends nccl and torch cannot measure",
            f"install torch {oldest()} or later",
        )
    return ok("torch", version if facts.torch_has_cuda else f"{version}, for CPUs: back end gloo")


def _nccl_tests(facts: Facts) -> Finding:
    if facts.nccl_tests:
        return ok("nccl-tests", facts.nccl_tests)
    return ok("nccl-tests", "not found; only needed for --backend nccl-tests (set NCCL_TESTS or PATH)")


def _sglang(facts: Facts) -> Finding:
    if facts.sglang_version is None:
        return ok("SGLang", "not installed here; only needed to validate against a server")
    fused = f", flashinfer {facts.flashinfer_version}" if facts.flashinfer_version else ", without flashinfer"
    return ok("SGLang", f"{facts.sglang_version}{fused}")


def _shm(facts: Facts) -> Finding:
    total, free = facts.shm_total_bytes, facts.machine.shm_free_bytes
    if total is None or free is None:
        return warning(
            "/dev/shm",
            "does not exist",
            "NCCL without peer access and torch's data loading need it",
            "mount a tmpfs there",
        )
    what = f"{total / MIB:.0f} MiB, {free / MIB:.0f} MiB free"
    needed = max(_SHM_LEAST_BYTES, _SHM_PER_RANK_BYTES * len(facts.machine.gpus))
    if free < needed:
        return warning(
            "/dev/shm",
            what,
            f"NCCL's buffers between {max(len(facts.machine.gpus), 2)} ranks without peer access may need {needed // MIB} MiB; a full one ends in 'No space left on device'",
            "docker run --shm-size 8g or --ipc=host; Kubernetes: an emptyDir of medium Memory on /dev/shm",
        )
    return ok("/dev/shm", what)


def _iommu(facts: Facts) -> Finding:
    options = f" ({' '.join(facts.iommu_options)})" if facts.iommu_options else ""
    redirecting = facts.acs_redirecting
    if redirecting:
        return warning(
            "IOMMU, ACS",
            f"ACS redirects peer traffic on {len(redirecting)} PCI bridges, {redirecting[0]} first",
            "GPU to GPU transfers go up to the CPU instead of through the switch, slower, and may hang",
            "bare metal: switch ACS off in the BIOS or with setpci; NVLink is not affected",
        )
    if facts.is_virtual:
        return ok("IOMMU, ACS", f"virtual machine: the host decides{options}")
    if facts.num_iommu_groups and not any("iommu=pt" in o or "iommu=off" in o for o in facts.iommu_options):
        return warning(
            "IOMMU, ACS",
            f"the IOMMU is on, {facts.num_iommu_groups} groups{options}",
            "peer transfers on PCIe may be slow or hang",
            "if peer access misbehaves: boot with iommu=pt (or off), and check ACS as root",
        )
    unseen = "; ACS can only be seen as root" if redirecting is None else ""
    state = (
        "the IOMMU is off"
        if facts.num_iommu_groups == 0
        else "the IOMMU is on, in pass-through"
        if facts.num_iommu_groups
        else "not told"
    )
    return ok("IOMMU, ACS", f"{state}{options}{unseen}")


def _conf_files(facts: Facts) -> Finding:
    files = facts.machine.nccl_conf_files
    if not files:
        return ok("nccl.conf", "none")
    return warning(
        "nccl.conf",
        f"NCCL reads {', '.join(files)}",
        "it adds settings to every process that do not show in the environment",
        "know what is in it; a scan sets what it varies in the environment, which wins over the file",
    )


def _environment(facts: Facts) -> Iterator[Finding]:
    inherited = facts.machine.inherited_nccl
    if not inherited:
        yield ok("NCCL_* set", "none")
        return
    yield warning(
        "NCCL_* set",
        " ".join(f"{name}={value}" for name, value in inherited.items()),
        "a scan drops them for its workers; a server started from this shell has them",
        "unset what you do not mean, or scan with --set to measure it",
    )
    for name in inherited:
        near = knobs.nearest(name) if name not in knobs.KNOBS else None
        if near:
            yield warning(
                "NCCL_* set",
                f"{name} is not a variable that nccltune knows",
                "NCCL ignores unknown names without a word",
                f"did you mean {near}?",
            )
    for refused in knobs.refusals(inherited):
        yield warning("NCCL_* set", f"{refused.variable}={refused.requested}", refused.message, "correct the value")
