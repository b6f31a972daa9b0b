"""How a validation looks in a terminal."""

from rich.console import Console

from nccltune.cli import _console
from nccltune.schemas.validation import SCHEMA, Arm, Measured, Validation

_COLUMNS = [
    ("phase", "left"), ("setting", "left"), ("batch", "right"), ("draft tokens", "right"), ("context", "right"), ("predicted ms", "right"),
    ("measured ms", "right"), ("error", "right"), ("interval", "left"),
]  # fmt: skip


def show(found: Validation, *, as_json: bool, verbose: bool = False) -> None:
    """Print the document, or the table, the score and what to look at."""
    if as_json:
        _console.print_json({"schema": SCHEMA, **found.model_dump(mode="json")})
        return
    out = _console.stdout()
    _print(out, f"{found.model} on {found.topology}, {found.ranks} ranks: {found.basis}")
    out.print()
    out.print(_console.table("", _COLUMNS, [_cells(arm) for arm in found.arms]))
    out.print()
    for line in _lines(found, verbose):
        _print(out, line)


def _cells(arm: Arm) -> list[str]:
    p = arm.predicted
    verdict = "calibrated on" if arm.used_for_calibration else "inside" if arm.inside_interval else "OUTSIDE"
    return [
        arm.phase, arm.setting.name, str(arm.batch_size), str(arm.draft_tokens), str(arm.context_tokens),
        f"{p.value:.2f} [{p.low:.2f}, {p.high:.2f}]", _measured(arm.measured), f"{arm.error_percent:+.1f}%", verdict,
    ]  # fmt: skip


def _measured(m: Measured) -> str:
    return f"{m.value:.2f} [{m.low:.2f}, {m.high:.2f}]" if m.num_samples > 1 else f"{m.value:.2f}"


def _lines(found: Validation, verbose: bool) -> list[str]:
    s = found.summary
    lines = [f"not predictable: {m.phase} {m.setting.name} batch {m.batch_size}, {m.draft_tokens} draft tokens ({_measured(m.measured)} ms): {m.reason}"
             for m in found.not_predictable]  # fmt: skip
    if s.num_scored:
        lines.append(
            f"{s.num_scored} arms scored ({s.num_used_for_calibration} calibrated on): mean error {s.mape_percent:.1f}%, worst {s.worst_percent:.1f}%, "
            f"{s.coverage_percent:.0f}% inside the 90% interval; tolerance {s.tolerance_percent:g}% for every arm: {'met' if s.within_tolerance else 'NOT met'}"
        )
    if found.rankings:
        right = sum(pair.right for pair in found.rankings)
        lines.append(f"settings: {right} of {len(found.rankings)} pairs that differ by more than 2% are ranked right")
    shown = found.regrets if verbose else sorted(found.regrets, key=lambda r: -r.regret_percent)[:1]
    lines += [
        f"choice of draft tokens: {r.chosen_draft_tokens} of {', '.join(map(str, r.draft_tokens))} by prediction, {r.best_draft_tokens} measured best, "
        f"{r.regret_percent:.1f}% tokens/s lost (batch {r.batch_size}, {r.setting.name})"
        for r in shown
    ]
    return lines + [f"look at - {text}" for text in found.findings]


def _print(out: Console, text: str) -> None:
    out.print(text, markup=False, highlight=False, soft_wrap=True)
