"""``validate points``: score measured times of any origin, without starting anything."""

from collections.abc import Sequence
from pathlib import Path

from nccltune.costmodel import profile as profiles
from nccltune.errors import QualityError, ValidationError
from nccltune.parse.points import read_points
from nccltune.schemas.common import Value, header
from nccltune.schemas.points import Point
from nccltune.schemas.setting import BASE, Setting
from nccltune.schemas.validation import SCHEMA, SCHEMA_VERSION, Arm, Measured, NotPredictable, Validation
from nccltune.store import Run
from nccltune.validation import compare
from nccltune.validation.architecture import architectures
from nccltune.validation.findings import findings
from nccltune.validation.observation import Key, Observation, observe
from nccltune.validation.predictor import Predictor, Subject, make_predictor

DEFAULT_TOLERANCE_PERCENT = 5.0


def validate_file(path: Path, subject: Subject, tolerance: float = DEFAULT_TOLERANCE_PERCENT) -> Validation:
    """Score a points file. Raises InputError for what cannot be read; a bad score is in the result (``gate``)."""
    points = read_points(path, names_of(subject))
    return validate_points(points, subject, tolerance, inputs=(path.name,))


def validate_points(
    points: Sequence[Point],
    subject: Subject,
    tolerance: float = DEFAULT_TOLERANCE_PERCENT,
    inputs: Sequence[str] = (),
    measured: Sequence[Measured] = (),
) -> Validation:
    """Calibrate on the points marked so, predict every other, and compare. ``measured``: their intervals, if known."""
    with architectures(subject) as resolved:
        predictor = make_predictor(resolved, [p for p in points if p.use == "calibrate"])
        seen = observe(points, predictor.settings, predictor.context, measured)
        return _validation(
            resolved, predictor, seen, tolerance, [*inputs, *([subject.run.name] if subject.run else [])]
        )


def names_of(subject: Subject) -> dict[str, Setting]:
    """Setting names that a points file may use: those of the profile and of the run, and ``best`` for its best one."""
    profile = profiles.load_profile(subject.profile) if subject.profile else None
    known = profiles.settings_of(profile) if profile else {}
    if profile is not None and profile.best_setting in known:
        known["best"] = known[profile.best_setting]
    fit = Run.load(subject.run).load_fit() if subject.run else None
    if fit is not None:
        known |= {s.setting.name: s.setting for s in fit.settings}
        known["best"] = known.get(fit.best or "base", BASE)
    return known


def gate(found: Validation) -> None:
    """Raise what the score means: QualityError with nothing scored or a part missing, ValidationError beyond the tolerance."""
    summary = found.summary
    if summary.num_scored == 0:
        if found.not_predictable:
            raise QualityError("nothing could be scored", found.not_predictable[0].reason, "scan those settings, or take points of settings that the run measured")  # fmt: skip
        raise QualityError("nothing could be scored", "every arm was calibrated on, here or for the profile", "leave some rows unmarked (use=score), of other arms")  # fmt: skip
    if not summary.within_tolerance:
        assert summary.worst_percent is not None
        off = [a for a in found.arms if not a.used_for_calibration and abs(a.error_percent) > summary.tolerance_percent]
        why = f"mean error {summary.mape_percent:.2f}%, worst {summary.worst_percent:.2f}%; no scored arm may be off by more than {summary.tolerance_percent:g}%"
        raise ValidationError(
            f"{len(off)} of {summary.num_scored} scored arms are out of tolerance", why,
            found.findings[0] if found.findings else "compare the arms; --tolerance sets the limit",
        )  # fmt: skip
    if summary.num_not_measured:
        measured: list[Arm | NotPredictable] = [*found.arms, *found.not_predictable]
        planned = summary.num_not_measured + len({(a.setting.id, a.batch_size, a.draft_tokens) for a in measured})  # fmt: skip
        raise QualityError(f"{summary.num_not_measured} of {planned} arms were not measured", "the others are within tolerance", "see the log of the server, then use --resume")  # fmt: skip


def _validation(
    subject: Subject, predictor: Predictor, seen: Sequence[Observation], tolerance: float, inputs: list[str]
) -> Validation:
    basis = predictor.whole()
    used = predictor.used(seen)
    arms, missing = _arms(predictor, seen, used)
    rankings, lost = compare.rank_settings(arms), compare.regrets(arms)
    return Validation(
        **{k: v for k, v in header(SCHEMA, SCHEMA_VERSION).items() if k != "schema"},
        model=basis.system.model.name, drafter=basis.system.drafter.name if basis.system.drafter else None,
        topology=basis.topology.name, ranks=basis.system.num_ranks,
        run_id=Run.load(subject.run).manifest.run_id if subject.run else None, basis=basis.text,
        arms=arms, not_predictable=missing, rankings=rankings, regrets=lost,
        summary=compare.summarize(arms, len(missing), rankings, lost, tolerance),
        findings=findings(arms, rankings, tolerance),
        warnings=[*basis.warnings, *(predictor.profile.warnings if predictor.profile else []), *predictor.warnings, *_warnings(seen, used, arms)],
        inputs=inputs,
    )  # fmt: skip


def _arms(predictor: Predictor, seen: Sequence[Observation], used: set[Key]) -> tuple[list[Arm], list[NotPredictable]]:
    """Predict setting by setting; the order of the file is kept."""
    by_setting: dict[str, list[int]] = {}
    for index, one in enumerate(seen):
        by_setting.setdefault(one.priced_as.id, []).append(index)
    predicted: dict[int, Value | str] = {}
    for indices in by_setting.values():
        setting: Setting = seen[indices[0]].priced_as
        found = predictor.predict(setting, [seen[i] for i in indices])
        for position, index in enumerate(indices):
            predicted[index] = found if isinstance(found, str) else found[position]
    arms, missing = [], []
    for index, one in enumerate(seen):
        value = predicted[index]
        if isinstance(value, str):
            missing.append(
                NotPredictable(
                    phase=one.phase, setting=one.setting, batch_size=one.batch_size, draft_tokens=one.draft_tokens,
                    context_tokens=one.context_tokens, measured=one.measured, reason=value, accept_length=one.accept_length, engine=one.engine,
                )
            )  # fmt: skip
        else:
            arms.append(compare.arm_of(one, value, one.key in used))
    return arms, missing


def _labels(seen: Sequence[Observation]) -> str:
    """Up to six arms by name, and how many more."""
    names = [f"{o.phase}:{o.batch_size}:{o.draft_tokens} {o.setting.name}" for o in seen]
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _warnings(seen: Sequence[Observation], used: set[Key], arms: Sequence[Arm]) -> list[str]:
    found = []
    unmarked = [o for o in seen if o.key in used and not o.is_for_calibration]
    if unmarked:
        found.append(f"points of the profile behind the predictions are not scored: {_labels(unmarked)}")
    mixed = [o for o in seen if o.is_for_calibration and o.has_other_rows]
    if mixed:
        found.append(f"an arm with a row marked calibrate is not scored, its unmarked rows neither: {_labels(mixed)}")
    renamed = {o.setting.id: o.priced_as for o in seen if o.setting.id != o.priced_as.id}
    found += [
        f"'{given}' is priced as '{s.name}' of the run: the same to an all-reduce" for given, s in renamed.items()
    ]
    engines = sorted({o.engine for o in seen if o.engine})
    if len(engines) > 1:
        found.append(
            f"the points are of {len(engines)} engines ({', '.join(engines)}): one prediction cannot fit them all"
        )
    cycles = [a for a in arms if a.phase == "cycle"]
    silent = [a for a in cycles if a.accept_length is None]
    if silent:
        found.append(
            f"{len(silent)} of {len(cycles)} cycle arms have no accept_length: they are left out of the regret"
        )
    lengths = {a.draft_tokens: set[float]() for a in cycles if a.accept_length is not None}
    for a in cycles:
        if a.accept_length is not None:
            lengths[a.draft_tokens].add(round(a.accept_length, 2))
    uneven = sorted(d for d, values in lengths.items() if values and max(values) > 1.02 * min(values))
    if uneven:
        found.append(f"accept lengths differ between arms at {', '.join(map(str, uneven))} draft tokens: only times are compared, so no setting is credited for that")  # fmt: skip
    return found
