"""What a prediction rests on: resolve model, machine, run and profile into a system, a belief and a setting."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from nccltune import registry
from nccltune.costmodel import comm as comm_room
from nccltune.costmodel import profile as profiles
from nccltune.costmodel.carried import Fitting, belief, told_settings
from nccltune.costmodel.cautions import Case, cautions
from nccltune.costmodel.comm import Comm
from nccltune.costmodel.curve import CommCurve
from nccltune.costmodel.posterior import Posterior
from nccltune.costmodel.quantization import with_quantization
from nccltune.costmodel.system import System
from nccltune.errors import InputError
from nccltune.knobs import find_setting
from nccltune.schemas.common import weakest
from nccltune.schemas.fit import Fit
from nccltune.schemas.model import Drafter, Model
from nccltune.schemas.profile import Profile, ProfileAcceptance
from nccltune.schemas.setting import BASE, Setting
from nccltune.schemas.topology import Topology
from nccltune.store import Run

DEFAULT_MODEL = "kimi-k2.5"
DEFAULT_CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, before anything is looked up. None: not given."""

    model: str | None = None
    drafter: str | None = None
    topology: str | None = None
    run: Path | None = None
    profile: str | Profile | None = None
    """Name or path, or a profile in memory."""
    setting: str | None = None
    ranks: int | None = None
    quant: str | None = None
    context: int | None = None


@dataclass(frozen=True, slots=True)
class Basis:
    """Everything resolved."""

    system: System
    posterior: Posterior
    setting_ids: dict[str, int]
    setting: Setting
    topology: Topology
    context_tokens: int
    comm: Comm
    profile: Profile | None
    """The profile whose points apply directly (same model, machine and ranks)."""
    text: str
    acceptance: ProfileAcceptance | None = None
    """Acceptance of the profile: of model and drafter, so it holds on another machine too (and is marked then)."""
    shipped: bool = False
    what_if: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    told: frozenset[str] = frozenset()
    """Settings without a curve whose all-reduce time the profile's points tell."""


def resolve(question: Question) -> Basis:
    """Look everything up; raises InputError for what does not fit together."""
    for what, number, least in (("context", question.context, 0), ("ranks", question.ranks, 1)):
        if number is not None and (not isinstance(number, int) or number < least):
            raise InputError(f"{what} {number} is not possible", f"a whole number of at least {least} was expected", "correct it")  # fmt: skip
    run = Run.load(question.run) if question.run else None
    fit = _fit_of(run) if run else None
    profile, shipped = _profile(question, run)
    model = registry.load_model(question.model or (profile.model if profile else _run_model(run)))
    if profile and model.name != profile.model and shipped:
        profile = None
    topology = registry.load_topology(_topology_name(question, run, profile))
    what_if: list[str] = []
    same_machine = profile is not None and profile.topology == topology.name
    ranks = question.ranks or (fit.num_ranks if fit else profile.num_ranks if profile and same_machine else topology.num_gpus)  # fmt: skip
    drafter = _drafter(question, model, profile)
    priced_model = with_quantization(model, question.quant) if question.quant else model
    requantized = priced_model.quantization != model.quantization
    if requantized:
        what_if.append(f"weights as {question.quant}")
    if profile and question.drafter and drafter and drafter.name != profile.drafter:
        what_if.append(f"drafter {drafter.name}")
    direct = _applies(profile, model, topology, ranks, question, run, what_if)
    same_pair = profile is not None and profile.model == model.name and question.drafter is None
    acceptance = profile.acceptance if profile and same_pair and (run is None or question.profile) else None
    default_context = profile.context_tokens if profile else DEFAULT_CONTEXT
    if profile and shipped and _other_gpu(profile, topology):
        profile = None  # kernels and bandwidth shares of another GPU say less than the priors do
    whole = direct and profile is not None and (fit is None or profile.run_id == fit.run_id)
    comm = _comm(fit, profile if direct else None, topology, ranks, what_if)
    measured_on = run.manifest.machine.topology if run else None
    if measured_on not in (None, topology.name):
        what_if.append(f"machine {topology.name} (run: {measured_on})")
        comm = _borrowed(comm, str(measured_on), topology)
    setting = _setting(question.setting, fit, profile if direct else None, comm)
    reference = profile.reference_setting if profile and whole else ("base" if "base" in comm.curves else next(iter(comm.curves), "base"))  # fmt: skip
    system = System(priced_model, drafter, ranks, topology.gpu.memory_bandwidth_bytes_per_s, comm.curves, reference, comm.basis)  # fmt: skip
    told = told_settings(profile, whole)
    system = _with_guess(system, setting, topology, told)
    posterior, ids = belief(system, setting, profile, Fitting(whole, direct, requantized))
    context = question.context if question.context is not None else default_context
    return Basis(
        system, posterior, ids, setting, topology, context, comm, profile if direct else None,
        _text(profile, direct, fit, comm, topology), acceptance, shipped and profile is not None, what_if,
        cautions(Case(fit, run, topology, setting, system, profile, direct, told)), told,
    )  # fmt: skip


def _run_model(run: Run | None) -> str:
    return (run.manifest.model if run else None) or DEFAULT_MODEL


def _other_gpu(profile: Profile, topology: Topology) -> bool:
    return profile.topology != topology.name and registry.load_topology(profile.topology).gpu.name != topology.gpu.name


def _with_guess(system: System, setting: Setting, topology: Topology, told: frozenset[str]) -> System:
    """Add NCCL's own estimate of a setting that neither a curve nor the profile's points tell anything about."""
    if setting.name in told or not system.inferred([setting.name]) or system.reference not in system.curves:
        return system
    reference = system.curves[system.reference]
    assert isinstance(reference, CommCurve)
    return replace(system, guesses={setting.name: comm_room.guess(topology, system.num_ranks, setting, reference)})


def _fit_of(run: Run) -> Fit:
    fit = run.load_fit()
    if fit is None:
        raise InputError(f"run {run.path} has no fit yet", "it was measured, or imported, without the fit step", f"run: nccltune fit {run.path}")  # fmt: skip
    return fit


def _profile(question: Question, run: Run | None) -> tuple[Profile | None, bool]:
    if isinstance(question.profile, Profile):
        return question.profile, False
    if question.profile:
        return profiles.load_profile(question.profile), False
    shipped = profiles.load_profile(profiles.REFERENCE)
    wanted = registry.load_model(question.model).name if question.model else None
    if run is not None and wanted is None and run.manifest.model:
        wanted = registry.load_model(run.manifest.model).name
    return (shipped, True) if wanted in (None, shipped.model) else (None, False)


def _topology_name(question: Question, run: Run | None, profile: Profile | None) -> str:
    if question.topology:
        return question.topology
    if run and run.manifest.machine.topology:
        return run.manifest.machine.topology
    return profile.topology if profile else profiles.load_profile(profiles.REFERENCE).topology


def _drafter(question: Question, model: Model, profile: Profile | None) -> Drafter | None:
    name = question.drafter or (profile.drafter if profile and profile.model == model.name else None) or model.default_drafter  # fmt: skip
    if not name:
        return None
    drafter = registry.load_drafter(name)
    check_drafter(drafter, model)
    return drafter


def check_drafter(drafter: Drafter, model: Model) -> None:
    """Raise InputError for a drafter that reads hidden states of another width than the model's."""
    if drafter.target_hidden_size != model.hidden_size:
        raise InputError(
            f"drafter {drafter.name} does not fit {model.name}",
            f"it reads hidden states of {drafter.target_hidden_size}, the model has {model.hidden_size}",
            f"choose a drafter of {model.name}, or leave --drafter out",
        )


def _applies(
    profile: Profile | None, model: Model, topology: Topology, ranks: int, question: Question, run: Run | None,
    what_if: list[str],
) -> bool:  # fmt: skip
    """Whether the profile's points are of this very case; what differs is a what-if."""
    if profile is None:
        return False
    differs = []
    if profile.model != model.name:
        differs.append(f"model {model.name} (profile: {profile.model})")
    if profile.topology != topology.name:
        differs.append(f"machine {topology.name} (profile: {profile.topology})")
    if profile.num_ranks != ranks:
        differs.append(f"{ranks} ranks (profile: {profile.num_ranks})")
    if question.profile or run is None:
        what_if.extend(differs)
    elsewhere = run is not None and run.manifest.machine.topology is None and profile.run_id != run.manifest.run_id
    return not differs and not elsewhere


def _comm(fit: Fit | None, profile: Profile | None, topology: Topology, ranks: int, what_if: list[str]) -> Comm:
    if fit is not None:
        comm = comm_room.fit_comm(fit, ranks, topology.links.kind)
        if ranks != fit.num_ranks:
            what_if.append(f"{ranks} ranks (run: {fit.num_ranks})")
        return comm
    if profile is not None:
        return Comm(profiles.curves_of(profile), profile.basis, profile.basis_note)
    return comm_room.topology_comm(topology, ranks)


def _borrowed(comm: Comm, measured_on: str, topology: Topology) -> Comm:
    """Communication of a run taken over to another machine: extrapolated and wide if its GPUs or links differ."""
    try:
        measured = registry.load_topology(measured_on)
    except InputError:  # a machine file that was left where the run was made
        measured = None
    if measured and (measured.gpu.name, measured.links.kind) == (topology.gpu.name, topology.links.kind):
        return comm
    curves = {n: replace(c, point_source=weakest(c.point_source, "extrapolated")) for n, c in comm.curves.items()}
    return Comm(curves, "analytic", f"{comm.note}, taken over from {measured_on}")


def _setting(asked: str | None, fit: Fit | None, profile: Profile | None, comm: Comm) -> Setting:
    known: dict[str, Setting] = {name: curve.setting for name, curve in comm.curves.items()}
    if fit is not None:
        known |= {s.setting.name: s.setting for s in fit.settings}
        best = fit.best or "base"
    else:
        known |= profiles.settings_of(profile) if profile else {}
        best = profile.best_setting if profile else "base"
    known.setdefault("base", BASE)
    if asked in (None, "", "best"):
        if best not in known:
            raise InputError(f"the fit calls '{best}' the best, but does not hold it", "fit.json was edited or is of another run", "fit the run again: nccltune fit RUN")  # fmt: skip
        return known[best]
    found = find_setting(str(asked), known)
    members = [s for s in fit.settings if s.timing == fit.timing and s.setting.id == found.id] if fit else []
    if fit is not None and members and not members[0].usable:
        raise InputError(f"setting '{found.name}' is not usable in run {fit.run_id}", members[0].reason, "choose another setting")  # fmt: skip
    return next((s for s in known.values() if s.id == found.id), found)


def _text(profile: Profile | None, direct: bool, fit: Fit | None, comm: Comm, topology: Topology) -> str:
    compute = (
        f"profile {profile.name} ({profile.title})" if profile and direct
        else f"profile {profile.name}, carried over" if profile
        else f"no engine point: stated priors for {topology.title}"
    )  # fmt: skip
    return f"compute from {compute}; communication from {comm.note}" if fit or not (profile and direct) else f"{compute}; communication: {comm.note}"  # fmt: skip


def known_settings(basis: Basis) -> Mapping[str, Setting]:
    """Settings with a curve or an inferred ratio."""
    names = {name: curve.setting for name, curve in basis.comm.curves.items()}
    return names | (profiles.settings_of(basis.profile) if basis.profile else {})
