"""From engine points to a profile: check that they belong together, fit them, and write down what a prediction needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nccltune import registry
from nccltune.costmodel.basis import DEFAULT_CONTEXT, check_drafter
from nccltune.costmodel.comm import Comm, fit_comm, to_setting_fit, topology_comm
from nccltune.costmodel.fitting import Calibration, calibrate_points, context_of
from nccltune.costmodel.posterior import NOISE, SPREAD
from nccltune.costmodel.priors import Prior
from nccltune.costmodel.system import System
from nccltune.errors import InputError
from nccltune.parse.points import parse_point, read_points
from nccltune.schemas.common import header
from nccltune.schemas.model import Model
from nccltune.schemas.points import Point
from nccltune.schemas.profile import (
    SCHEMA,
    SCHEMA_VERSION,
    Discrepancy,
    FittedPoint,
    Parameter,
    Profile,
    ProfileAcceptance,
)
from nccltune.schemas.setting import Setting
from nccltune.schemas.topology import Topology
from nccltune.store import Run

# A point this many times off what the architecture says is hardly one of this model, or not in milliseconds: on
# the published curves of benchmarks/model_accuracy.py engines are 0.6 to 1.4 times it.
_IMPLAUSIBLE = 8.0


@dataclass(frozen=True, slots=True)
class Request:
    """What to calibrate. ``topology``, ``drafter``, ``ranks``: from the run or the model file where not given."""

    model: str
    points: tuple[Point, ...]
    run: Path | None = None
    topology: str | None = None
    drafter: str | None = None
    ranks: int | None = None
    engine: str = ""
    context: int = DEFAULT_CONTEXT
    name: str = ""
    allow_mixed: bool = False
    inputs: tuple[str, ...] = ()


def calibrate(request: Request) -> Profile:
    """Fit engine points into a profile. Raises InputError where points of different engines are mixed unsaid."""
    points = [p for p in request.points if p.use != "score"]
    kept_back = len(request.points) - len(points)
    if kept_back and not points:
        raise InputError("every point is marked use=score", "those are kept for 'nccltune validate points'", "mark the ones to fit on with use=calibrate")  # fmt: skip
    engine, warnings = _one_engine(points, request)
    if kept_back:
        warnings.append(f"{kept_back} point(s) marked use=score are left out: they are for 'nccltune validate points'")
    run = Run.load(request.run) if request.run else None
    fit = run.load_fit() if run else None
    if run is not None and fit is None:
        raise InputError(f"run {run.path} has no fit yet", "", f"run: nccltune fit {run.path}")
    model = registry.load_model(request.model)
    name = request.topology or (run.manifest.machine.topology if run else None)
    if name is None:
        raise InputError("the machine is not known", "no --topology, and the run matches no machine file", "give --topology NAME ('nccltune topology list', 'nccltune topology detect')")  # fmt: skip
    topology = registry.load_topology(name)
    if run and run.manifest.machine.topology not in (None, topology.name):
        _mixed(f"the run is of {run.manifest.machine.topology}, --topology says {topology.name}", request, warnings)
    if run and run.manifest.model and registry.load_model(run.manifest.model).name != model.name:
        warnings.append(f"the run was scanned for {run.manifest.model}: its message sizes may not be those of {model.name}")  # fmt: skip
    ranks = request.ranks or (fit.num_ranks if fit else topology.num_gpus)
    comm = fit_comm(fit, ranks, topology.links.kind) if fit else topology_comm(topology, ranks)
    best = (fit.best or "base") if fit else None
    reference = "base" if "base" in comm.curves or not comm.curves else next(iter(comm.curves))
    machine = run.manifest.machine.fingerprint if run else f"{topology.title} (no run)"
    return make_profile(
        request, model, topology, ranks, comm, reference, points, engine, machine, warnings, best=best,
        run_id=fit.run_id if fit else None, known={s.setting.id: s.setting for s in fit.settings} if fit else {},
    )  # fmt: skip


def make_profile(
    request: Request, model: Model, topology: Topology, ranks: int, comm: Comm, reference: str, points: list[Point],
    engine: str, machine: str, warnings: list[str], *, best: str | None = None, run_id: str | None = None,
    known: dict[str, Setting] | None = None, acceptance: ProfileAcceptance | None = None,
) -> Profile:  # fmt: skip
    """Fit the points and write down everything a prediction needs."""
    points = [_named(p, known or {}) for p in points]
    drafter_name = request.drafter or model.default_drafter
    drafter = registry.load_drafter(drafter_name) if drafter_name else None
    if drafter is not None:
        check_drafter(drafter, model)
    system = System(model, drafter, ranks, topology.gpu.memory_bandwidth_bytes_per_s, comm.curves, reference, comm.basis)  # fmt: skip
    found = calibrate_points(system, points, request.context)
    posterior, seen = found.posterior, found.posterior.seen
    assert seen is not None
    warnings += _cautions(system, points, found)
    settings = list({p.setting.name: p.setting for p in points}.values())
    return Profile(
        **{k: v for k, v in header(SCHEMA, SCHEMA_VERSION).items() if k != "schema"},
        name=request.name or f"{model.name}-{topology.name}", title=f"{model.title} on {topology.title}", model=model.name,
        drafter=drafter.name if drafter else None, topology=topology.name, run_id=run_id, machine=machine, engine=engine,
        num_ranks=ranks, context_tokens=_usual_context(points, request.context), basis=comm.basis, basis_note=comm.note, reference_setting=reference,
        best_setting=best or _fastest(points), settings=settings,
        curves=[to_setting_fit(n, c) for n, c in comm.curves.items()],
        parameters=[_parameter(p, t, v) for p, t, v in zip(posterior.priors, posterior.theta, np.diag(posterior.covariance), strict=True)],
        covariance=[[_rounded(v) for v in row] for row in posterior.covariance],
        discrepancy=Discrepancy(spread=SPREAD, noise=NOISE, scale=_rounded(posterior.scale)),
        points=[
            FittedPoint(point=p, context_tokens=context_of(p, request.context), model_ms=_rounded(m), fitted_ms=_rounded(f), gradient=[_rounded(v) for v in g])
            for p, m, f, g in zip(points, found.model_ms, found.fitted_ms, seen.gradient, strict=True)
        ],
        acceptance=acceptance or _acceptance(points), warnings=warnings, inputs=list(request.inputs),
    )  # fmt: skip


def _one_engine(points: Sequence[Point], request: Request) -> tuple[str, list[str]]:
    warnings: list[str] = []
    engines = sorted({p.engine for p in points if p.engine} | ({request.engine} if request.engine else set()))
    if len(engines) > 1:
        _mixed(f"the points are of {len(engines)} engines: {', '.join(engines)}", request, warnings)
    return " + ".join(engines) or "not stated", warnings


def _mixed(what: str, request: Request, warnings: list[str]) -> None:
    if not request.allow_mixed:
        raise InputError(what, "one profile describes one model on one machine with one engine", "split the points, or say --allow-mixed")  # fmt: skip
    warnings.append(f"mixed on request: {what}")


def _named(point: Point, known: dict[str, Setting]) -> Point:
    """Give a setting the name it has in the run, so that its curve is found."""
    setting = known.get(point.setting.id)
    return point if setting is None else point.model_copy(update={"setting": setting})


def _cautions(system: System, points: Sequence[Point], found: Calibration) -> list[str]:
    result = []
    inferred = system.inferred([p.setting.name for p in points])
    if inferred:
        result.append(f"no all-reduce curve of {', '.join(inferred)}: the ratio to '{system.reference}' is inferred from the points and extrapolated to other sizes")  # fmt: skip
    if not any(p.phase in ("verify", "cycle") for p in points):
        result.append("no verify or cycle point: the verify overhead is assumed; add one with --point verify:1:3:MS")
    odd = [(p, p.time_ms / ms) for p, ms in zip(points, found.prior_ms, strict=True) if not 1 / _IMPLAUSIBLE <= p.time_ms / ms <= _IMPLAUSIBLE]  # fmt: skip
    result += [f"point {p.label} is {ratio:.2g} times what weights and bandwidth say: is it of this model, in milliseconds?" for p, ratio in odd]  # fmt: skip
    result += [f"point {v.label} ({v.time_ms:g} ms) is faster than {d.label} ({d.time_ms:g} ms): a verify does a plain forward's work and more; check both" for v, d in _inverted(points)]  # fmt: skip
    far = [(p, f / p.time_ms - 1) for p, f in zip(points, found.fitted_ms, strict=True) if abs(f / p.time_ms - 1) > 0.05]  # fmt: skip
    result += [f"point {p.label} is {100 * e:+.1f}% off after the fit: check its time, or whether it belongs here" for p, e in far]  # fmt: skip
    return result


def _inverted(points: Sequence[Point]) -> list[tuple[Point, Point]]:
    """Verify or cycle points below the decode point of the same batch, setting and context (5% for scatter)."""
    decode = {(p.batch_size, p.setting.id, p.context_tokens): p for p in points if p.phase == "decode"}
    pairs = [(p, decode.get((p.batch_size, p.setting.id, p.context_tokens))) for p in points if p.phase in ("verify", "cycle")]  # fmt: skip
    return [(v, d) for v, d in pairs if d is not None and v.time_ms < 0.95 * d.time_ms]


def _usual_context(points: Sequence[Point], default: int) -> int:
    """Context that most points were taken at: what the profile predicts at unless told otherwise."""
    contexts = [context_of(p, default) for p in points]
    return max(dict.fromkeys(contexts), key=contexts.count)


def _fastest(points: Sequence[Point]) -> str:
    """Setting with the lowest time at comparable points; base without a comparison."""
    best: dict[tuple[str, int, int], tuple[float, str]] = {}
    for p in points:
        key = (p.phase, p.batch_size, p.draft_tokens)
        best[key] = min(best.get(key, (np.inf, "base")), (p.time_ms, p.setting.name))
    names = [name for _, name in best.values()]
    return max(dict.fromkeys(names), key=names.count) if names else "base"


def _acceptance(points: Sequence[Point]) -> ProfileAcceptance | None:
    """Mean accept length of the points with the most common draft-token count that give one."""
    given = [p for p in points if p.accept_length is not None and p.draft_tokens > 1]
    if not given:
        return None
    widths = [p.draft_tokens for p in given]
    width = max(dict.fromkeys(widths), key=widths.count)
    values = np.array([p.accept_length for p in given if p.draft_tokens == width], dtype=float)
    mean = float(values.mean())
    half = max(1.645 * float(values.std(ddof=1)) if values.size > 1 else 0.0, 0.04 * mean)
    return ProfileAcceptance(mean=mean, low=max(mean - half, 1.0), high=min(mean + half, float(width)), num_steps=width - 1,
                             source=f"accept_length of {values.size} point(s) at {width} draft tokens")  # fmt: skip


def _parameter(prior: Prior, theta: float, variance: float) -> Parameter:
    value = float(theta) if prior.exponent else float(np.exp(theta))
    return Parameter(
        name=prior.name, unit=prior.unit, value=_rounded(value), spread=_rounded(float(np.sqrt(variance))),
        prior_value=prior.median, prior_spread=prior.spread, prior_source=prior.source, exponent=prior.exponent,
    )  # fmt: skip


def _rounded(value: float) -> float:
    """Nine significant digits: enough for any use, and the same on every machine."""
    return float(f"{float(value):.9g}")


def gather_request(
    points: str | Path | Sequence[str] | Sequence[Point], run: Path | None, *, model: str, context: int, **options: Any
) -> Request:
    """Build a request from a points file, texts or records; setting names of the run are known."""
    known: dict[str, Setting] = {}
    if run is not None:
        fit = Run.load(run).load_fit()
        known = {s.setting.name: s.setting for s in fit.settings} if fit else {}
    inputs = [run.name] if run else []
    if isinstance(points, str | Path):
        found = read_points(Path(points), known)
        inputs.append(Path(points).name)
    else:
        found = [p if isinstance(p, Point) else parse_point(p, known) for p in points]
    return Request(model, tuple(found), run, context=context, inputs=tuple(inputs), **options)
