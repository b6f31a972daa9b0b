"""What NCCL really did with a setting: in force or not, the choice for a size, and which settings amount to the same."""

from dataclasses import dataclass, field
from typing import Any

from nccltune.algo_lists import TOKENS, read
from nccltune.knobs import KNOBS, refusals
from nccltune.parse.nccl_log import NcclLog
from nccltune.schemas.measurement import Choice, Rejected

# Variables whose whole effect on one all-reduce is visible in its choice (algorithm, protocol, blocks, threads, transports).
_VISIBLE = {
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS",
    "NCCL_NTHREADS", "NCCL_LL128_NTHREADS", "NCCL_THREAD_THRESHOLDS", "NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE",
}  # fmt: skip
# Buffer sizes are not visible, but touch one protocol only (nccl.md A4).
_BUFFERS = {"NCCL_BUFFSIZE": "Simple", "NCCL_LL_BUFFSIZE": "LL", "NCCL_LL128_BUFFSIZE": "LL128"}


@dataclass
class Resolution:
    """What one communicator said about its setting, and about the base that it stands on."""

    choices: dict[int, Choice] = field(default_factory=dict)
    model_us: dict[int, float] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)
    not_read: list[str] = field(default_factory=list)
    can_tell: bool = True

    def in_force(self, size_bytes: int, env: dict[str, str]) -> tuple[bool | None, str]:
        """Whether ``env``, a setting's own variables, is in force for this size, with the reason when it is not."""
        if not env:
            return True, ""
        if not self.can_tell:
            return None, ""
        faults = self.faults(env)
        if faults:
            return False, faults[0]
        choice = self.choices.get(size_bytes)
        for variable, got in (
            ("NCCL_ALGO", choice.algo if choice else None),
            ("NCCL_PROTO", choice.proto if choice else None),
        ):
            if got is not None and not _allowed(variable, env.get(variable), got):
                return False, f"{variable}={env[variable]} but NCCL used {got}"
        return True, ""

    def of(self, env: dict[str, str]) -> list[Rejected]:
        """What NCCL refused of these variables."""
        return [rejected for rejected in self.rejected if rejected.variable in env]

    def faults(self, env: dict[str, str]) -> list[str]:
        """What NCCL refused or never read of these variables, in words."""
        unread = [name for name in self.not_read if name in env]
        refused = [f"{r.variable}={r.requested}: {r.message}" for r in self.of(env)]
        return refused + ([f"NCCL never read {', '.join(unread)}"] if unread else [])


def resolve(env: dict[str, str], log: NcclLog, echoed: dict[str, str], answers: list[dict[str, Any]]) -> Resolution:
    """Join NCCL's log with the kernels that the graph holds.

    ``echoed``: variables this copy of the library has ever said it read; ``answers``: one per size, from the rank that
    logs. Library-scope variables are echoed once per copy, at its first communicator.
    """
    result = Resolution()
    logged = {choice.size_bytes: choice for choice in log.choices if choice.collective == "AllReduce"}
    for answer in answers:
        size = answer["size_bytes"]
        if answer.get("error"):
            result.errors[size] = answer["error"]
            continue
        result.choices[size] = _choice(logged.get(size), answer["nodes"], dict(log.transports or {}))
        if answer["model_us"] is not None:
            result.model_us[size] = answer["model_us"]
    known = {r.variable for r in log.rejected}
    result.rejected = [r for r in log.rejected if r.variable in env]
    result.rejected += [r for r in refusals(env) if r.variable not in known]
    result.not_read = [
        name
        for name in env
        if not _is_moot(name, env) and name not in echoed and name not in {r.variable for r in result.rejected}
    ]
    return result


def kernels_only(answers: list[dict[str, Any]]) -> Resolution:
    """What a graph holds where no log tells more: the kernels of one all-reduce, or why there are none for a size."""
    result = Resolution(can_tell=False)
    for answer in answers:
        if answer.get("error"):
            result.errors[answer["size_bytes"]] = answer["error"]
            continue
        names = dict.fromkeys(node["name"] for node in answer["nodes"] if node["name"])
        result.choices[answer["size_bytes"]] = Choice(kernel="+".join(names) or None, source="graph-node")
    return result


def effective_key(env: dict[str, str], choice: Choice | None, size_bytes: int, timing: str) -> tuple[Any, ...] | None:
    """Identity of what runs for a size: equal keys are the same kernel launch, so one measurement serves them all.

    None when the choice is not known well enough to say so.
    """
    if choice is None or choice.algo is None or choice.proto is None or choice.num_channels is None:
        return None
    hidden = {}
    for name, value in env.items():
        if name in _VISIBLE or (name in _BUFFERS and _BUFFERS[name] != choice.proto):
            continue
        hidden[name] = value
    transports = tuple(sorted(name for name, count in choice.transports.items() if count))
    return (
        size_bytes,
        timing,
        choice.algo,
        choice.proto,
        choice.num_channels,
        choice.num_threads,
        transports,
        tuple(sorted(hidden.items())),
    )


def _is_moot(name: str, env: dict[str, str]) -> bool:
    """A variable that NCCL has no reason to read, because another one decides before it: no fault of the setting."""
    return name == "NCCL_P2P_LEVEL" and env.get("NCCL_P2P_DISABLE") == "1"


def _choice(logged: Any, nodes: list[dict[str, Any]], transports: dict[str, int]) -> Choice:
    node = next((n for n in nodes if "nccl" in n["name"].lower()), nodes[0] if len(nodes) == 1 else None)
    sources = [
        name for name, present in (("nccl-log", logged is not None), ("graph-node", node is not None)) if present
    ]
    return Choice(
        algo=logged.algo if logged else None,
        proto=logged.proto if logged else None,
        num_channels=node["num_blocks"] if node else (logged.num_channels if logged else None),
        num_threads=node["num_threads"] if node else None,
        kernel=node["name"] if node else None,
        transports=transports,
        source="+".join(sources),
    )


def _allowed(variable: str, requested: str | None, got: str) -> bool:
    """Whether the value of NCCL_ALGO or NCCL_PROTO lets an all-reduce use ``got``."""
    return not requested or got in read(variable, requested).of("AllReduce", TOKENS[variable])


def tunable_unknown(env: dict[str, str]) -> list[str]:
    """Variables this tool does not know: measured all the same, never shared."""
    return [name for name in env if name not in KNOBS]
