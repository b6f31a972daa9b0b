"""Communication curves of a machine that was not measured here: published tables, other rank counts, or NCCL's model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from nccltune.costmodel.curve import CommCurve, analytic_curve, curve_from_fit, curve_from_published
from nccltune.costmodel.estimate import Estimate
from nccltune.costmodel.ranks import extrapolate_ranks
from nccltune.errors import NoBasisError
from nccltune.schemas.common import SOURCES, weakest
from nccltune.schemas.fit import CurvePoint, Fit, SettingFit
from nccltune.schemas.setting import BASE, Setting
from nccltune.schemas.topology import Topology

CurveBasis = Literal["measured", "published", "analytic"]


@dataclass(frozen=True, slots=True)
class Comm:
    """Curves by setting name, how they were obtained (priors.COMM_SPREAD) and a sentence on it."""

    curves: Mapping[str, CommCurve]
    basis: CurveBasis
    note: str


def topology_comm(topology: Topology, num_ranks: int, library: str = "nccl") -> Comm:
    """Return the curves of a machine file for ``num_ranks``: published, from other rank counts, or analytic."""
    if num_ranks == 1:
        return Comm({}, "published", "one rank: no communication")
    tables = [t for t in topology.allreduce if t.library == library and t.num_ranks <= topology.num_gpus]
    here = [curve_from_published(t, t.source) for t in tables if t.num_ranks == num_ranks]
    plain = [c for c in here if c.setting.env == {}]
    if plain:
        named = {c.setting.name: c for c in here if c.setting.env}
        base = average(plain)
        return Comm({"base": base, **named}, "published", f"published {library} table of {topology.title}, {num_ranks} ranks: {base.origin}")  # fmt: skip
    by_ranks: dict[int, CommCurve] = {}
    for table in tables:
        if table.setting.env == {} and table.num_ranks not in by_ranks:
            by_ranks[table.num_ranks] = curve_from_published(table, table.source)
    if by_ranks:
        curve = extrapolate_ranks(list(by_ranks.values()), num_ranks, topology.links.kind)
        return Comm({"base": curve}, "analytic", f"extrapolated from {', '.join(map(str, sorted(by_ranks)))} ranks of {topology.title} to {num_ranks}")  # fmt: skip
    curve = analytic_curve(topology.links.kind, topology.gpu.compute_capability, num_ranks, BASE, topology.links.bandwidth_bytes_per_s)  # fmt: skip
    return Comm({"base": curve}, "analytic", f"no table of {topology.title}: NCCL's own cost model for its links")


def fit_comm(fit: Fit, num_ranks: int, links_kind: str) -> Comm:
    """Return the curves of a run's fit; for another rank count they are extrapolated and marked.

    Only those of ``fit.timing``: a fit keeps the curves of its other timings beside them, under the same names.
    """
    curves: dict[str, CommCurve] = {}
    by_name = {s.setting.name: s for s in fit.settings if s.timing == fit.timing}
    for name, setting_fit in by_name.items():
        source = setting_fit if setting_fit.points or not setting_fit.same_as else by_name.get(setting_fit.same_as)
        if source is None or not setting_fit.usable or not source.usable or not source.points:
            continue
        curves[name] = curve_from_fit(source, fit.num_ranks, f"run {fit.run_id}, {fit.timing}")
    if not curves:
        raise NoBasisError(f"run {fit.run_id} has no usable all-reduce times", "every setting failed or was disqualified", "scan again and look at the first error")  # fmt: skip
    basis: CurveBasis = "measured" if fit.timing == "in-forward" else "published"
    note = f"run {fit.run_id}: {fit.machine}, {fit.num_ranks} ranks, {fit.timing}"
    if num_ranks == fit.num_ranks or num_ranks == 1:
        return Comm(curves if num_ranks > 1 else {}, basis, note)
    nvls = fit.base_env.get("NCCL_NVLS_ENABLE") != "0"
    return Comm(
        {n: extrapolate_ranks([c], num_ranks, links_kind, nvls=nvls) for n, c in curves.items()},
        "analytic", f"{note}; extrapolated to {num_ranks} ranks",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class RatioCurve:
    """A setting nobody measured: the reference curve times what NCCL's own cost model says of the two settings."""

    reference: CommCurve
    asked: CommCurve
    modelled_reference: CommCurve

    def at(self, size_bytes: ArrayLike) -> Estimate:
        """Return the estimate at each size; analytic at best."""
        known = self.reference.at(size_bytes)
        ratio = self.asked.at(size_bytes).value / self.modelled_reference.at(size_bytes).value
        source = np.maximum(known.source, SOURCES.index("analytic")).astype(np.int8)
        return Estimate(known.value * ratio, known.low * ratio, known.high * ratio, source)


def guess(topology: Topology, num_ranks: int, setting: Setting, reference: CommCurve) -> RatioCurve:
    """Guess an unmeasured setting's curve; raises NoBasisError where it leaves NCCL no algorithm."""
    kind, capability = topology.links.kind, topology.gpu.compute_capability
    asked, modelled = (
        analytic_curve(kind, capability, num_ranks, s, topology.links.bandwidth_bytes_per_s)
        for s in (setting, reference.setting)
    )
    return RatioCurve(reference, asked, modelled)


def average(curves: Sequence[CommCurve]) -> CommCurve:
    """Geometric mean of tables of one kind of machine on several hosts; the interval holds every one of them.

    The longest table gives the sizes; another counts by its ratio to it, held constant beyond its own range.
    """
    first = max(curves, key=lambda c: c.size_bytes.size)
    if len(curves) == 1:
        return first
    logs, lows, highs = [], [], []
    for curve in curves:
        inside = np.clip(first.size_bytes, curve.size_bytes[0], curve.size_bytes[-1])
        ratio = np.log(curve.at(inside).value / first.at(inside).value)
        logs.append(np.log(first.time_us) + ratio)
        lows.append(np.log(np.maximum(curve.at(inside).low, 1e-9) / first.at(inside).value) + np.log(first.time_us))
        highs.append(np.log(curve.at(inside).high / first.at(inside).value) + np.log(first.time_us))
    return CommCurve(
        first.setting, first.num_ranks, "mean of " + "; ".join(c.origin for c in curves), first.size_bytes,
        np.exp(np.mean(logs, axis=0)), np.exp(np.min(lows, axis=0)), np.exp(np.max(highs, axis=0)),
        weakest(*(c.point_source for c in curves)),
    )  # fmt: skip


def to_setting_fit(name: str, curve: CommCurve) -> SettingFit:
    """Keep a curve inside a profile."""
    points = [
        CurvePoint(size_bytes=int(s), time_us=float(t), low_us=float(lo), high_us=float(hi), source=curve.point_source)
        for s, t, lo, hi in zip(curve.size_bytes, curve.time_us, curve.low_us, curve.high_us, strict=True)
    ]
    setting = curve.setting if curve.setting.name == name else curve.setting.model_copy(update={"name": name})
    return SettingFit(setting=setting, timing="in-forward", usable=True, reason=curve.origin, points=points)
