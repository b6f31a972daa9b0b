"""From a run to its fit: per setting a curve with intervals, pieces and leave-one-out error, ranked by the forward."""

import datetime
from pathlib import Path

import numpy as np

from nccltune import __version__
from nccltune.costmodel import judge
from nccltune.costmodel.beside import fit_beside
from nccltune.costmodel.curve import leave_one_out
from nccltune.costmodel.pieces import fit_pieces
from nccltune.costmodel.points import Cells
from nccltune.costmodel.ranking import Columns, decode_columns, rank, with_forward
from nccltune.errors import InputError, QualityError
from nccltune.methods import NCCL
from nccltune.outputs import MEASUREMENTS
from nccltune.registry import load_model
from nccltune.schemas.common import command_line
from nccltune.schemas.fit import CurvePoint, Fit, LeaveOneOut, SettingFit
from nccltune.schemas.measurement import Timing
from nccltune.schemas.model import Model
from nccltune.schemas.run import Manifest
from nccltune.schemas.setting import BASE, Setting
from nccltune.store import Run

# Best first: what stands for the cost in a forward.
TIMINGS: tuple[Timing, ...] = ("in-forward", "back-to-back", "eager")
# Repetitions of the base further apart than this (standard deviation) are worth a warning.
NOISY_SD = 0.03
UNDERSTATES = "understate what an all-reduce costs inside a forward, by 5 to 42% on 2x H200 (docs/fit.md)"


def fit_run(run: Run, *, model: Model | None = None, timing: Timing | None = None) -> Fit:
    """Fit a run.

    Raises QualityError when nothing in it is usable, InputError for a timing that it does not hold. Predictions use
    ``timing``; by default the in-forward times, without them back-to-back, then eager ones, with a warning.
    """
    manifest = run.manifest
    measurements = run.all_measurements()
    cells = Cells.make(m for m in measurements if m.method == NCCL)
    chosen = _timing(cells, timing, str(run.path))
    settings = _settings(manifest, cells)
    columns = decode_columns(model, manifest, cells.sizes.get((chosen, BASE.id), []))
    fitter = _Fitter(cells, {setting.id: setting for setting in settings}, columns, manifest.num_ranks)
    fits = {t: [fitter.fit(setting, t) for setting in settings] for t in TIMINGS if t in cells.timings}
    if not any(fit.usable for fit in fits[chosen]):
        why = next((f"{fit.setting.name}: {fit.reason}" for fit in fits[chosen] if fit.reason), "")
        raise QualityError(
            f"no setting of {run.path} is usable", why, "see the statuses in measurements.jsonl, then scan again"
        )
    ranking = rank(fits[chosen], columns, manifest.num_ranks)
    named = {fit.setting.name: fit for fit in ranking.settings}
    beside = fit_beside(
        measurements, chosen, columns, manifest.num_ranks,
        spread=cells.spread, base=named.get(BASE.name), best=named.get(ranking.best or BASE.name),
    )  # fmt: skip
    others = [fit for t, members in fits.items() if t != chosen for fit in members if fit.points]
    return Fit(
        nccltune_version=__version__,
        created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=command_line(),
        run_id=manifest.run_id,
        machine=manifest.machine.fingerprint,
        num_ranks=manifest.num_ranks,
        base=manifest.base,
        base_env=manifest.base_env,
        model=model.name if model else None,
        timing=chosen,
        settings=[*ranking.settings, *others],
        decode_tokens=columns.decode_tokens,
        best=ranking.best,
        tied_with_best=ranking.tied,
        beside=beside,
        warnings=[*_damage(run), *_warnings(manifest, cells, chosen, fits[chosen], columns)],
    )


def fit_folder(path: Path, *, model: str | None = None, timing: str | None = None) -> Fit:
    """Load a run, fit it and write ``fit.json`` beside its measurements; without ``model`` the scan's own is used."""
    run = Run.load(path)
    known = next((t for t in TIMINGS if t == timing), None)
    if timing is not None and known is None:
        raise InputError(f"no timing is called '{timing}'", f"known: {', '.join(TIMINGS)}", "correct the timing")
    name = model or run.manifest.model
    try:
        loaded = load_model(name) if name else None
    except InputError as error:
        if model:
            raise
        raise InputError(
            f"the run's model '{name}' is not known here", str(error), "name one with --model, or its .toml file"
        ) from error
    result = fit_run(run, model=loaded, timing=known)
    run.save_fit(result)
    return result


def _timing(cells: Cells, asked: Timing | None, where: str) -> Timing:
    present = [timing for timing in TIMINGS if timing in cells.timings]
    if not present:
        raise QualityError(f"{where} has no all-reduce times", *_nothing_usable(cells, where))
    if asked is not None and asked not in present:
        raise InputError(f"{where} has no {asked} times", f"it has {', '.join(present)}", f"use --timing {present[0]}")
    return asked or present[0]


def _nothing_usable(cells: Cells, where: str) -> tuple[str, str]:
    """Why a run has no times, and what to do about it."""
    again = "start a new run: nccltune scan"
    if cells.broken:
        return (
            f"{_counted(cells.broken)} with times that are zero, negative or no numbers",
            f"do not edit the records; {again}",
        )
    if cells.failed:
        failed = next(iter(cells.failed.values()))
        return f"first case: {failed.error.message if failed.error else failed.status}", f"scan on: nccltune scan --resume {where}"  # fmt: skip
    if cells.idle:
        return f"{_counted(cells.idle)} whose setting did not take effect", f"{again}, with settings that this library takes"  # fmt: skip
    return "it has no measurements", f"scan on: nccltune scan --resume {where}"


def _counted(case_ids: list[str]) -> str:
    return f"{len(case_ids)} case{'s' if len(case_ids) > 1 else ''} (first: {case_ids[0]})"


def _settings(manifest: Manifest, cells: Cells) -> list[Setting]:
    """Settings in the order of the plan, then any that only the measurements name."""
    found = {setting.id: setting for setting in manifest.settings}
    for key, launches in cells.found.items():
        found.setdefault(key[1], launches[0].setting)
    for key, failed in cells.failed.items():
        found.setdefault(key[1], failed.setting)
    return list(found.values())


class _Fitter:
    """Fits one setting at a time; settings that share every point share the pieces too."""

    def __init__(self, cells: Cells, settings: dict[str, Setting], columns: Columns, num_ranks: int) -> None:
        self.cells, self.settings, self.columns, self.num_ranks = cells, settings, columns, num_ranks

    def fit(self, setting: Setting, timing: Timing) -> SettingFit:
        """Fit one setting under one timing; a setting that is not usable keeps its points out."""
        fault = judge.fault(setting, self.cells)
        twin = judge.same_as(setting, timing, self.cells)
        sizes = self.cells.sizes.get((timing, setting.id), [])
        points = [] if fault else [self.cells.point((timing, setting.id, size)) for size in sizes]
        fit = SettingFit(
            setting=setting,
            timing=timing,
            usable=bool(points),
            reason=fault or self._remark(timing, twin, sizes),
            same_as=self.settings[twin].name if twin else None,
            points=points,
        )
        return with_forward(self._described(fit), self.columns, self.num_ranks)

    def _remark(self, timing: Timing, twin: str | None, sizes: list[int]) -> str:
        planned = self.cells.sizes.get((timing, BASE.id), [])
        missing = len(set(planned) - set(sizes))
        if not sizes:
            return "not measured"
        if missing:
            return f"measured at {len(planned) - missing} of the {len(planned)} sizes of the base"
        return f"resolved to the same choices as '{self.settings[twin].name}' at every size" if twin else ""

    def _described(self, fit: SettingFit) -> SettingFit:
        """Add the alpha-beta pieces and the leave-one-size-out error."""
        if not fit.points:
            return fit
        size = np.array([p.size_bytes for p in fit.points], dtype=float)
        time = np.array([p.time_us for p in fit.points])
        errors = 100 * np.abs(leave_one_out(size, time))
        left_out = (
            LeaveOneOut(
                median_percent=float(np.median(errors)), worst_percent=float(errors.max()), num_points=errors.size
            )
            if errors.size
            else None
        )
        return fit.model_copy(
            update={"pieces": fit_pieces(size, time, [_proto(p) for p in fit.points]), "leave_one_out": left_out}
        )


def _proto(point: CurvePoint) -> str | None:
    return point.choice.proto if point.choice is not None else None


def _damage(run: Run) -> list[str]:
    number = run.num_cut_lines
    return [f"{number} damaged line(s) of {run.path / MEASUREMENTS} were left out"] if number else []


def _warnings(manifest: Manifest, cells: Cells, timing: Timing, fits: list[SettingFit], columns: Columns) -> list[str]:
    warnings = []
    if manifest.status != "complete":
        warnings.append(f"the run is {manifest.status}: settings without all sizes cannot be ranked")
    if manifest.backend == "gloo":
        warnings.append("the times are of gloo between CPU processes: they say nothing about NCCL on GPUs")
    elif timing != "in-forward":
        warnings.append(f"{timing} times {UNDERSTATES}: scan with --timing in-forward")
    if cells.broken:
        warnings.append(f"{_counted(cells.broken)} with times that are zero, negative or no numbers: left out")
    wrong = [fit.setting.name for fit in fits if fit.reason.startswith("wrong results")]
    if wrong:
        warnings.append(
            f"wrong results disqualify {', '.join(wrong[:5])}"
            + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        )
    if not any(fit.setting.id == BASE.id and fit.usable for fit in fits):
        warnings.append("the base environment has no usable times: nothing can be compared with it")
    if not columns.labels:
        warnings.append(
            "no model: settings are ranked by their times up to 256 KiB; give --model to rank by its forward"
        )
    spread = cells.spread
    if not spread.num_repeats:
        warnings.append("the base was not measured again through the run: 1.5% from launch to launch is assumed")
    elif spread.sd > NOISY_SD:
        warnings.append(
            f"repetitions of the base differ by {100 * spread.sd:.1f}% (standard deviation): the machine was not quiet"
        )
    return warnings
