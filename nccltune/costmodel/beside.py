"""What an engine could use instead of NCCL: curves of the other methods in a run, beside the best NCCL setting. Pure."""

from collections import defaultdict
from collections.abc import Iterable

from nccltune.costmodel.points import Cells, Spread
from nccltune.costmodel.ranking import Columns, compare, with_forward
from nccltune.methods import LABELS, NCCL
from nccltune.schemas.fit import BesideFit, SettingFit
from nccltune.schemas.measurement import Measurement, Timing
from nccltune.units import format_size


def fit_beside(
    measurements: Iterable[Measurement],
    timing: Timing,
    columns: Columns,
    num_ranks: int,
    *,
    spread: Spread,
    base: SettingFit | None,
    best: SettingFit | None,
) -> list[BesideFit]:
    """Fit each method that is not NCCL as if it were a setting; ``spread`` from launch to launch is the base's.

    Fastest in the decode forwards first, then those without a time at every decode size, then the unusable ones.
    """
    by_method: dict[str, list[Measurement]] = defaultdict(list)
    for m in measurements:
        if m.method != NCCL:
            by_method[m.method].append(m)
    found = []
    for method, members in by_method.items():
        curve = with_forward(_curve(members, timing, spread), columns, num_ranks)
        found.append(
            BesideFit(
                method=method,
                label=LABELS.get(method, method),
                timing=timing,
                usable=curve.usable,
                reason=curve.reason,
                points=curve.points,
                forward_us=curve.forward_us,
                forward_interval_us=curve.forward_interval_us,
                versus_base=compare(curve, base, columns, num_ranks),
                versus_best=compare(curve, best, columns, num_ranks),
            )
        )
    return sorted(found, key=_order)


def _curve(members: list[Measurement], timing: Timing, spread: Spread) -> SettingFit:
    """Points of one method; wrong sums at any size leave none, a size that it refuses is only missing."""
    cells = Cells.make(members)
    cells.spread = spread
    setting = members[0].setting
    wrong = any(m.status == "wrong_results" for m in members)
    sizes = [] if wrong else cells.sizes.get((timing, setting.id), [])
    points = [cells.point((timing, setting.id, size)) for size in sizes]
    return SettingFit(
        setting=setting, timing=timing, usable=bool(points), reason=_reason(members, bool(points)), points=points
    )


def _reason(members: list[Measurement], usable: bool) -> str:
    """What kept a method from some or all of its sizes; wrong sums are named first."""
    failed = sorted((m for m in members if m.status != "ok"), key=lambda m: m.status != "wrong_results")
    if not failed:
        return ""
    first = failed[0]
    message = first.error.message.strip() if first.error else ""
    text = message.splitlines()[0][:200] if message else first.status.replace("_", " ")
    if not usable and first.status != "wrong_results":
        return text
    sizes = sorted({m.size_bytes for m in failed if m.status == first.status})
    more = f" and {len(sizes) - 1} more sizes" if len(sizes) > 1 else ""
    return f"at {format_size(sizes[0])}{more}: {text}"


def _order(fit: BesideFit) -> tuple[int, float, str]:
    if fit.versus_base is not None:
        return 0, fit.versus_base.percent, fit.method
    return (1 if fit.usable else 2), 0.0, fit.method
