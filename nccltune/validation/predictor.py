"""Predictions for observations: calibrate in memory on the rows marked so, then price every arm under its own setting."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from nccltune import calibration, registry
from nccltune.costmodel import posterior as belief
from nccltune.costmodel import profile as profiles
from nccltune.costmodel.basis import DEFAULT_CONTEXT, Basis, Question, resolve
from nccltune.costmodel.comm import Comm
from nccltune.costmodel.estimate import Estimate
from nccltune.costmodel.forward import features_of, price
from nccltune.costmodel.sources import sources_of
from nccltune.costmodel.system import Rows
from nccltune.errors import InputError, NccltuneError
from nccltune.knobs import BASES, NAMED
from nccltune.schemas.common import SOURCES, Source, Value
from nccltune.schemas.points import Point
from nccltune.schemas.profile import Profile
from nccltune.schemas.setting import BASE, Setting
from nccltune.store import Run
from nccltune.validation.observation import Key, Observation, Settings, key_of

_MAX_CALIBRATION_ROWS = 1000  # the fit inverts a matrix of as many rows


@dataclass(frozen=True, slots=True)
class Subject:
    """What is predicted, and from what. None: not given."""

    model: str
    run: Path | None = None
    profile: str | None = None
    topology: str | None = None
    drafter: str | None = None
    ranks: int | None = None
    context: int | None = None
    allow_mixed: bool = False


@dataclass(frozen=True)
class Predictor:
    """A question with a profile in memory, and the arms that this profile was calibrated on."""

    question: Question
    settings: Settings
    context: int
    profile: Profile | None = None
    warnings: list[str] = field(default_factory=list)

    def whole(self) -> Basis:
        """Resolve what all predictions share: model, machine, profile."""
        return resolve(self.question)

    def basis(self, setting: Setting) -> Basis:
        """Resolve what predictions of one setting rest on; raises InputError for one that is not usable."""
        is_named = setting.name in NAMED and NAMED[setting.name].id == setting.id
        return resolve(replace(self.question, setting=setting.name if is_named else setting.id))

    def used(self, seen: Sequence[Observation] = ()) -> set[Key]:
        """Arms that the predictions were calibrated on, those of a profile that applies by itself included.

        An observation with the very time of a point is that measurement, whatever context it is filed under.
        """
        profile = self.whole().profile
        points = profile.points if profile else []
        keys = {
            key_of(p.point.model_copy(update={"context_tokens": p.context_tokens}), self.settings, self.context): p
            for p in points
        }
        times = {(*key[:4], p.point.time_ms) for key, p in keys.items()}
        return set(keys) | {o.key for o in seen if (*o.key[:4], o.measured.value) in times}

    def predict(self, setting: Setting, seen: Sequence[Observation]) -> list[Value] | str:
        """Predict observations of one setting; a text says why that is not possible."""
        try:
            basis = self.basis(setting)
        except NccltuneError as error:
            return str(error)
        name = basis.setting.name
        if basis.system.inferred([name]) and not self._is_told(basis, name):
            return f"the run has no curve of '{setting.name}' ({setting.id}), and no row marked calibrate tells of it: scan it, or mark one row of it"
        return _price(basis, seen)

    def _is_told(self, basis: Basis, name: str) -> bool:
        return basis.profile is not None and any(p.name == f"setting:{name}" for p in basis.profile.parameters)


def make_predictor(subject: Subject, rows: Sequence[Point]) -> Predictor:
    """Calibrate on ``rows`` (on top of the run and the profile) and return what predicts. Raises InputError."""
    if len(rows) > _MAX_CALIBRATION_ROWS:
        raise InputError(f"{len(rows)} rows are marked calibrate", f"at most {_MAX_CALIBRATION_ROWS} can be fitted", "mark fewer rows")  # fmt: skip
    given = profiles.load_profile(subject.profile) if subject.profile else _applying(subject)
    settings = known_settings(subject.run, given)
    context = subject.context if subject.context is not None else given.context_tokens if given else DEFAULT_CONTEXT
    rows = [p.model_copy(update={"setting": settings.priced_as(p.setting)}) for p in rows]
    warnings: list[str] = []
    profile: Profile | None = given if subject.profile else None
    if rows:
        # A run is of the user's own machine: the shipped points, published of another, are not mixed into its fit.
        below = given if subject.profile or subject.run is None else None
        if below is not None and not subject.profile:
            warnings.append(f"the rows marked calibrate are fitted together with the {len(below.points)} points of the shipped profile {below.name}")  # fmt: skip
        profile = _calibrated(subject, below, rows, context, warnings)
    question = Question(
        subject.model, subject.drafter, subject.topology, subject.run, profile, None, subject.ranks, None, context
    )
    return Predictor(question, settings, context, profile, warnings)


def _applying(subject: Subject) -> Profile | None:
    """Return the shipped profile where it applies by itself."""
    known_settings(subject.run, None)  # says what to do about a run without a fit
    asked = Question(subject.model, subject.drafter, subject.topology, subject.run, ranks=subject.ranks)
    return resolve(asked).profile


def known_settings(run: Path | None, profile: Profile | None) -> Settings:
    """Return the settings that a run (or, without one, a profile) knows."""
    fit = Run.load(run).load_fit() if run else None
    if run is not None and fit is None:
        raise InputError(f"run {run} has no fit yet", "", f"run: nccltune fit {run}")
    known = [s.setting for s in fit.settings] if fit else list(profile.settings) if profile else []
    return Settings([BASE, *known], fit.base_env if fit else BASES["sglang"])


def _calibrated(
    subject: Subject, given: Profile | None, rows: Sequence[Point], context: int, warnings: list[str]
) -> Profile:
    """Fit the rows, together with the points of a profile of the same case."""
    request = calibration.Request(
        subject.model, tuple(rows), subject.run, subject.topology, subject.drafter, subject.ranks, context=context,
        name="rows marked calibrate", allow_mixed=subject.allow_mixed,
    )  # fmt: skip
    if given is None:
        return calibration.calibrate(request)
    run = Run.load(subject.run) if subject.run else None
    topology = registry.load_topology(subject.topology or (run.manifest.machine.topology if run else None) or given.topology)  # fmt: skip
    model = registry.load_model(subject.model)
    ranks = subject.ranks or (run.manifest.num_ranks if run else given.num_ranks)
    if (given.model, given.topology, given.num_ranks) != (model.name, topology.name, ranks):
        warnings.append(f"profile {given.name} is of {given.model} on {given.topology}, {given.num_ranks} ranks: its points do not count here")  # fmt: skip
        return calibration.calibrate(replace(request, topology=topology.name))
    settings = known_settings(subject.run, given)
    points = [
        p.point.model_copy(update={"context_tokens": p.context_tokens, "setting": settings.priced_as(p.point.setting)})
        for p in given.points
    ] + list(rows)
    request = replace(request, points=tuple(points), topology=topology.name, drafter=subject.drafter or given.drafter)
    if run is not None:
        return calibration.calibrate(request)
    comm = Comm(profiles.curves_of(given), given.basis, given.basis_note)
    return calibration.make_profile(
        request, model, topology, ranks, comm, given.reference_setting, points, given.engine, given.machine, [],
        best=given.best_setting, run_id=given.run_id, known={s.id: s for s in given.settings}, acceptance=given.acceptance,
    )  # fmt: skip


def _price(basis: Basis, seen: Sequence[Observation]) -> list[Value]:
    """Price arms by their phase: verify is the target's forward, draft the drafter's share, the rest whole cycles."""
    rows = Rows.make(
        [o.batch_size for o in seen], [o.draft_tokens for o in seen], [o.context_tokens for o in seen],
        [basis.setting.name] * len(seen),
    )  # fmt: skip
    priced = price(basis.system, rows, basis.posterior, basis.setting_ids)
    estimates: dict[str, Estimate] = {}
    for phase in dict.fromkeys(o.phase for o in seen):
        if phase == "draft":
            features = features_of(rows, basis.setting_ids)
            features = replace(features, kind=np.full(len(rows), belief.DRAFT, dtype=np.intp))
            fix = belief.correction(basis.posterior, features)
            interval = belief.interval(basis.posterior, priced.groups["draft"], fix, noise=True)
            estimates[phase] = belief.estimate(
                interval, np.full(len(rows), SOURCES.index(_draft_source(basis)), np.int8)
            )
        else:
            total = priced.verify if phase == "verify" else priced.cycle
            sources = sources_of(priced, basis.setting_ids)
            source = sources.verify if phase == "verify" else sources.cycle
            estimates[phase] = priced.estimate(total, source, noise=True)
    return [estimates[o.phase].item(i) for i, o in enumerate(seen)]


def _draft_source(basis: Basis) -> Source:
    seen = basis.posterior.seen
    if seen is None:
        return "analytic"
    return "interpolated" if "draft" in seen.phases else "extrapolated"
