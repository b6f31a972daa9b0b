"""From what a user asks to a prepared scan: back end, ranks, sizes, plan, run folder. Fails before the long work starts."""

import datetime
import secrets
from dataclasses import dataclass, field, replace
from typing import Any

from nccltune import __version__
from nccltune.bench.effective import tunable_unknown
from nccltune.bench.options import ScanOptions
from nccltune.bench.requirements import busy_notes, check_torch, choose_backend, count_ranks
from nccltune.bench.sampling import StopRule
from nccltune.bench.session import SessionOptions
from nccltune.costmodel.experts import distinct_experts
from nccltune.costmodel.weights import weight_bytes
from nccltune.errors import InputError
from nccltune.knobs import nearest
from nccltune.methods import METHODS
from nccltune.plan import Grid, Plan, default_grid, make_plan
from nccltune.registry import load_model
from nccltune.schemas.common import command_line
from nccltune.schemas.machine import Machine
from nccltune.schemas.measurement import Timing
from nccltune.schemas.model import Model
from nccltune.schemas.run import Manifest
from nccltune.store import Run

DEFAULT_HIDDEN = 7168
# What a decode step streams between two all-reduces is bounded here: more would only make the scan slower, the
# all-reduce no longer feels the difference.
MAX_WEIGHT_BYTES = 64 << 20
MIN_WEIGHT_BYTES = 4 << 20
MAX_DECODE_TOKENS = 16
# Settings between two repetitions of the base: at least so many, and about so many repetitions over a large grid.
MONITOR_EVERY, MONITORS = 8, 16
MAX_DECODE_SIZES = 5
_RULE = ("relative_width", "min_replays", "max_replays")
BACKENDS = ("auto", "nccl", "nccl-tests", "torch", "gloo")


@dataclass(frozen=True)
class ScanRequest:
    """Everything a user can ask of a scan, resolved by ``prepare``."""

    backend: str = "auto"
    num_ranks: int | None = None
    model: Model | None = None
    tokens: list[int] = field(default_factory=list)
    size_bytes: list[int] = field(default_factory=list)
    grid: Grid = field(default_factory=Grid)
    timings: list[Timing] = field(default_factory=list)
    base: str = "sglang"
    base_extra: dict[str, str] = field(default_factory=dict)
    dtype: str = "bfloat16"
    seed: int = 0
    search: str = "full"
    libnccl: str | None = None
    nccl_tests: str | None = None
    rule: StopRule = field(default_factory=StopRule)
    dedup: bool = True
    time_budget_s: float | None = None
    case_timeout_s: float = 60.0
    force: bool = False
    retry_failed: bool = False
    beside: bool | None = None
    """Measure what an engine could use instead of NCCL too; None: where the back end can."""


@dataclass(frozen=True)
class Prepared:
    """A plan with all that is needed to walk it."""

    request: ScanRequest
    plan: Plan
    machine: Machine
    session: SessionOptions
    options: ScanOptions
    notes: list[str]

    def manifest(self) -> Manifest:
        """The manifest of a new run."""
        now = datetime.datetime.now(datetime.UTC)
        return Manifest.model_validate(
            {
                "nccltune_version": __version__, "created_at": now.isoformat(timespec="seconds"), "command": command_line(),
                "run_id": f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}", "backend": self.plan.backend, "base": self.plan.base,
                "base_env": self.plan.base_env, "num_ranks": self.plan.num_ranks, "dtype": self.plan.dtype,
                "model": self.request.model.name if self.request.model else None, "tokens": self.request.tokens,
                "size_bytes": self.plan.size_bytes, "timings": self.plan.timings, "settings": self.plan.settings,
                "plan_id": self.plan.id, "search": self.request.search, "seed": self.plan.seed, "machine": self.machine, "notes": self.notes,
                "options": {
                    "weight_bytes_per_allreduce": {str(k): v for k, v in self.options.weight_bytes.items()},
                    "decode_sizes": list(self.options.decode_sizes),
                    "hidden_size": self.session.hidden_size, "relative_width": self.options.rule.relative_width,
                    "min_replays": self.options.rule.min_replays, "max_replays": self.options.rule.max_replays,
                    "beside": self.options.beside,
                },
            }
        )  # fmt: skip


def prepare(request: ScanRequest, machine: Machine | None = None) -> Prepared:
    """Resolve the back end, the ranks, the sizes and the plan; raises InputError or MachineError before any work.

    ``machine``: this machine, where it was collected already.
    """
    from nccltune.probe import collect_machine

    if request.backend not in BACKENDS:
        raise InputError(
            f"no back end is called '{request.backend}'", f"known: {', '.join(BACKENDS)}", "correct --backend"
        )
    machine = machine or collect_machine()
    backend, notes = choose_backend(request.backend, request.num_ranks, machine)
    num_ranks = count_ranks(request.num_ranks, backend, machine)
    sizes = sorted(
        {*request.size_bytes, *([request.model.allreduce_bytes(t) for t in request.tokens] if request.model else [])}
    )
    timings: list[Timing] = request.timings or (["in-forward"] if backend in ("nccl", "torch") else ["back-to-back"])
    if backend == "nccl-tests" and timings != ["back-to-back"]:
        raise InputError(
            "nccl-tests can only time back to back",
            "it has no compute between its collectives",
            "use --timing back-to-back, or --backend nccl",
        )
    grid = default_grid() if request.grid.is_empty and backend != "gloo" else request.grid
    plan = make_plan(
        grid, size_bytes=sizes, timings=timings, num_ranks=num_ranks, dtype=request.dtype, base=request.base, backend=backend,
        seed=request.seed, base_extra=request.base_extra,
    )  # fmt: skip
    notes += _unknown_variables(plan)
    libnccl = ""
    if backend in ("nccl", "torch"):
        from nccltune.probe import find_libnccl

        library = find_libnccl(request.libnccl)
        libnccl, machine = library.path, machine.model_copy(update={"nccl": library})
        check_torch(machine)
        notes += busy_notes(machine, num_ranks, request.force)
    if request.beside and backend != "nccl":
        notes.append("--beside: only the back end nccl measures what an engine could use instead of NCCL")
    hidden = request.model.hidden_size if request.model else DEFAULT_HIDDEN
    session = SessionOptions(
        backend=backend, num_ranks=num_ranks, dtype=request.dtype, max_bytes=max(sizes), hidden_size=hidden, libnccl=libnccl,
        timeout_s=request.case_timeout_s,
    )  # fmt: skip
    options = ScanOptions(
        rule=request.rule, dedup=request.dedup, time_budget_s=request.time_budget_s, retry_failed=request.retry_failed,
        decode_sizes=_decode_sizes(request.model, sizes), monitor_every=max(MONITOR_EVERY, len(plan.settings) // MONITORS), beside=backend == "nccl" and request.beside is not False,
        weight_bytes={size: _weights(request.model, size, num_ranks) for size in sizes},
    )  # fmt: skip
    return Prepared(request, plan, machine, session, options, notes)


def resume_request(run: Run, request: ScanRequest | None) -> ScanRequest:
    """The request that made ``run``, from its manifest; only how to measure may be given anew."""
    m = run.manifest
    how = request or ScanRequest()
    model = how.model
    if model is None or model.name != m.model:
        model = load_model(m.model) if m.model else None
    # Without a rule of its own the rest is measured like the part that is there.
    rule = (
        how.rule if how.rule != StopRule() else replace(how.rule, **{k: m.options[k] for k in _RULE if k in m.options})
    )
    return ScanRequest(
        backend=m.backend, num_ranks=m.num_ranks, model=model, tokens=m.tokens, size_bytes=m.size_bytes,
        grid=Grid(named=tuple(m.settings)), timings=m.timings, base=m.base, dtype=m.dtype, seed=m.seed, search=m.search, base_extra=m.base_env,
        libnccl=how.libnccl, nccl_tests=how.nccl_tests, rule=rule, dedup=how.dedup, time_budget_s=how.time_budget_s,
        case_timeout_s=how.case_timeout_s, force=how.force, retry_failed=how.retry_failed,
        beside=m.options.get("beside", False) if how.beside is None else how.beside,
    )  # fmt: skip


def check_resumable(prepared: Prepared, run: Run) -> None:
    """Check that this machine and plan are those of ``run``; raises InputError naming what differs."""
    here, there = prepared.machine, run.manifest.machine
    if run.manifest.plan_id != prepared.plan.id:
        raise InputError(
            f"{run.path} cannot be resumed", "its plan is not the one its manifest describes", "start a new run"
        )
    old = (
        there.hostname_hash,
        [g.name for g in there.gpus],
        there.driver_version,
        there.nccl.sha256_16 if there.nccl else "",
    )
    new = (
        here.hostname_hash,
        [g.name for g in here.gpus],
        here.driver_version,
        here.nccl.sha256_16 if here.nccl else "",
    )
    if old != new:
        raise InputError(
            f"{run.path} was measured on another machine",
            f"run: {there.fingerprint}; here: {here.fingerprint}",
            "start a new run",
        )


def _weights(model: Model | None, size_bytes: int, num_ranks: int) -> int:
    """Bytes of weights one rank streams between two all-reduces of a forward with this message."""
    if model is None:
        return 16 << 20
    tokens = max(1, size_bytes // model.allreduce_bytes(1))
    experts = distinct_experts(model.moe, tokens) if model.moe else 0.0
    total = float(sum(part.sum() for part in weight_bytes(model, num_ranks, experts).values()))
    return int(min(max(total / model.num_allreduces, MIN_WEIGHT_BYTES), MAX_WEIGHT_BYTES))


def _unknown_variables(plan: Plan) -> list[str]:
    """A misspelt variable is measured as asked, and found not to be read; better to say so before."""
    names = sorted({name for setting in plan.settings for name in tunable_unknown(setting.env)})
    return [
        f"{name} is no variable this tool knows" + (f"; did you mean {close}?" if (close := nearest(name)) else "")
        for name in names
    ]


def _decode_sizes(model: Model | None, sizes: list[int]) -> tuple[int, ...]:
    """Sizes up to 16 tokens of a forward, at most five spread over them; all sizes when none is that small."""
    limit = (model.allreduce_bytes(1) if model else DEFAULT_HIDDEN * 2) * MAX_DECODE_TOKENS
    small = [size for size in sizes if size <= limit] or sizes
    step = max(1, -(-len(small) // MAX_DECODE_SIZES))
    return tuple(dict.fromkeys([*small[::step], small[-1]]))


def request_facts(prepared: Prepared) -> dict[str, Any]:
    """What --dry-run prints."""
    plan = prepared.plan
    return {
        "backend": plan.backend, "num_ranks": plan.num_ranks, "base": plan.base, "base_env": plan.base_env, "num_settings": len(plan.settings),
        "num_sizes": len(plan.size_bytes), "timings": plan.timings, "num_cases": plan.num_cases, "estimate_s": round(plan.estimate_s(), 1),
        "num_library_copies": len(plan.groups()) if plan.backend == "nccl" else 0,
        "settings": [s.model_dump() for s in plan.settings], "size_bytes": plan.size_bytes,
        "dropped": [{"setting": s.name, "reason": reason} for s, reason in plan.dropped], "notes": prepared.notes,
        "beside": [m.name for m in METHODS] if prepared.options.beside else [], "dedup": prepared.options.dedup,
    }  # fmt: skip
