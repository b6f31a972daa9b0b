"""This machine in one page: what is there, what stands in the way, and whether NCCL settings reach the engine at all."""

from dataclasses import dataclass
from typing import Any

from nccltune import engine_path, registry
from nccltune.doctor.facts import Facts, gather
from nccltune.doctor.findings import Finding, ok, warning
from nccltune.doctor.hardware import hardware_findings
from nccltune.doctor.software import software_findings
from nccltune.engine_path import EnginePath
from nccltune.probe.torch_version import is_too_old, oldest

__all__ = ["Ability", "Diagnosis", "Finding", "diagnose", "judge"]


@dataclass(frozen=True, slots=True)
class Ability:
    """One command, and whether this machine can run it."""

    command: str
    possible: bool
    why: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Findings in reading order, the engine's path (None where no machine is known), and what can be done here."""

    facts: Facts
    findings: list[Finding]
    engine: EnginePath | None
    abilities: list[Ability]

    def count(self, status: str) -> int:
        """Return the number of findings of one status."""
        return sum(finding.status == status for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the body of ``doctor --json`` (the caller adds the header)."""
        facts = self.facts
        return {
            "machine": facts.machine.model_dump(mode="json"),
            "compute_capability": facts.compute_capability,
            "p2p_status": facts.p2p_status,
            "nccl_tests": facts.nccl_tests,
            "sglang_version": facts.sglang_version,
            "flashinfer_version": facts.flashinfer_version,
            "shm_total_bytes": facts.shm_total_bytes,
            "engine": self.engine.to_json() if self.engine else None,
            "abilities": [{"command": a.command, "possible": a.possible, "why": a.why} for a in self.abilities],
            "findings": [finding.to_json() for finding in self.findings],
            "summary": {status: self.count(status) for status in ("ok", "warning", "problem")},
        }


def diagnose(
    *,
    libnccl: str | None = None,
    model: str | None = None,
    topology: str | None = None,
    engine_flags: list[str] | None = None,
) -> Diagnosis:
    """Look at this machine and judge it.

    ``model`` and ``topology`` are names or paths of files (InputError if unknown); ``topology`` answers the engine
    question for another machine; ``engine_flags`` is the SGLang command line that will be used.
    """
    architecture = registry.load_model(model).hf_architecture if model else None
    return judge(gather(libnccl), architecture=architecture, topology=topology, engine_flags=engine_flags or [])


def judge(
    facts: Facts, *, architecture: str | None = None, topology: str | None = None, engine_flags: list[str] | None = None
) -> Diagnosis:
    """Judge gathered facts: pure but for the topology file."""
    engine = _engine(facts, architecture, topology, engine_flags or [])
    findings = [*hardware_findings(facts), *software_findings(facts), _engine_finding(engine)]
    return Diagnosis(facts, findings, engine, _abilities(facts))


def _engine(facts: Facts, architecture: str | None, topology: str | None, flags: list[str]) -> EnginePath | None:
    if topology is not None:
        machine = registry.load_topology(topology)
        return engine_path.engine_allreduce_path(
            machine.links.kind,
            machine.num_gpus,
            compute_capability=machine.gpu.compute_capability,
            model_architecture=architecture,
            options=engine_path.EngineOptions.from_flags(flags),
        )
    kind = facts.links_kind
    if kind is None:
        return None
    return engine_path.engine_allreduce_path(
        kind,
        len(facts.machine.gpus),
        compute_capability=facts.compute_capability,
        model_architecture=architecture,
        options=facts.engine_options(flags),
    )


def _engine_finding(engine: EnginePath | None) -> Finding:
    topic = "engine"
    if engine is None:
        return ok(topic, "not known here, without two linked GPUs; ask for another machine with --topology NAME")
    maybe = "" if engine.certain else ", as far as can be told from here"
    if engine.nccl_settings_matter:
        return ok(topic, f"{engine_path.ENGINE} sends decode-size all-reduces through NCCL{maybe}: {engine.reason}")
    return warning(
        topic,
        f"{engine_path.ENGINE} sends decode-size all-reduces through {engine.path}, not NCCL{maybe}: NCCL settings will not change them",
        engine.reason,
        f"measure before you change it: {engine.how_to_change}",
    )


def _abilities(facts: Facts) -> list[Ability]:
    num_gpus = len(facts.machine.gpus)
    torch = facts.machine.torch_version is not None
    lacks = [
        text
        for text, missing in (
            (f"two GPUs (there {'is' if num_gpus == 1 else 'are'} {num_gpus})", num_gpus < 2),
            ("torch for CUDA", not facts.torch_has_cuda),
            (f"torch {oldest()}", is_too_old(facts.machine.torch_version or "")),
            ("libnccl", facts.machine.nccl is None),
        )
        if missing
    ]
    tests_lack = [*(["two GPUs"] if num_gpus < 2 else []), *([] if facts.nccl_tests else ["all_reduce_perf"])]
    server_lacks = [*(["a GPU"] if not num_gpus else []), *([] if facts.sglang_version else ["SGLang"])]
    return [
        _ability("scan --backend nccl", lacks, f"{num_gpus} GPUs"),
        _ability("scan --backend nccl-tests", tests_lack, facts.nccl_tests or ""),
        _ability("scan --backend gloo", [] if torch else ["torch"], "over local CPU processes"),
        _ability("validate sglang", server_lacks, f"SGLang {facts.sglang_version}"),
        Ability("fit, predict, emit", True, "from a run of any machine, or a shipped reference"),
    ]


def _ability(command: str, lacks: list[str], where: str) -> Ability:
    return Ability(command, not lacks, f"needs {', '.join(lacks)}" if lacks else where)
