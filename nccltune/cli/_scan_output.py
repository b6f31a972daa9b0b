"""What a scan says at the end, and what --dry-run says before."""

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.console import Console

from nccltune.cli import _beside, _console
from nccltune.methods import LABELS
from nccltune.units import format_duration, format_size

if TYPE_CHECKING:
    from nccltune.bench.report import ScanResult

_MAX_LISTED = 12


def dry_run(facts: dict[str, Any], as_json: bool, err: Console) -> None:
    """Print the plan of a scan."""
    for note in facts["notes"]:
        err.print(f"note: {note}", markup=False, soft_wrap=True)
    if as_json:
        _console.print_json({"schema": "nccltune.plan", "schema_version": 1, **facts})
        return
    out = _console.stdout()
    sizes = ", ".join(format_size(size) for size in facts["size_bytes"])
    base = " ".join(f"{k}={v}" for k, v in facts["base_env"].items()) or "nothing set"
    lines = [
        f"{facts['num_cases']} cases: {facts['num_settings']} settings x {facts['num_sizes']} sizes x {len(facts['timings'])} timing ({', '.join(facts['timings'])})",
        f"back end {facts['backend']}, {facts['num_ranks']} ranks, base {facts['base']} ({base})",
        f"sizes: {sizes}",
        f"about {format_duration(facts['estimate_s'])}; settings that resolve to the same choice "
        + ("share a measurement" if facts["dedup"] else "are measured one by one (--no-dedup)"),
    ]
    names = [setting["name"] for setting in facts["settings"]]
    lines.append(
        "settings: "
        + ", ".join(names[:_MAX_LISTED])
        + (f", and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else "")
    )
    if facts["beside"]:
        lines.append(f"then beside NCCL, where available: {', '.join(LABELS[name] for name in facts['beside'])}")
    by_reason = Counter(entry["reason"] for entry in facts["dropped"])
    lines += [f"dropped {count}: {reason}" for reason, count in by_reason.items()]
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)


def finished(result: "ScanResult", as_json: bool, err: Console) -> None:
    """Print the ranked table, what failed, and where everything is."""
    from nccltune.bench.report import failures

    for note in result.notes:
        err.print(f"note: {note}", markup=False, soft_wrap=True)
    failed = failures(result.measurements)
    if as_json:
        _console.print_json(_document(result, failed))
    elif result.fit is not None:
        from nccltune.cli._tables import fit_table

        out = _console.stdout()
        out.print(fit_table(result.fit))
        for line in _beside.summary(result.fit):
            out.print(line, markup=False, highlight=False, soft_wrap=True)
    _console.warn(err, result.fit.warnings if result.fit else [])
    for m in failed[:_MAX_LISTED]:
        why = (
            m.error.message.splitlines()[0][:160]
            if m.error
            else f"{m.num_wrong} of {m.num_checked} elements wrong"
            if m.num_wrong
            else ""
        )
        err.print(f"{m.status}: {m.setting.name} at {m.size_bytes} B: {why}", markup=False, soft_wrap=True)
    if len(failed) > _MAX_LISTED:
        err.print(
            f"and {len(failed) - _MAX_LISTED} more settings with failures; see {result.run.path}/measurements.jsonl",
            markup=False,
        )
    counts = ", ".join(f"{count} {status}" for status, count in sorted(result.counts.items()))
    err.print(f"{counts}. Run: {result.run.path}", markup=False, soft_wrap=True)
    if result.env_file:
        err.print(f"Env file: {result.env_file}", markup=False, soft_wrap=True)
    elif result.no_env_reason:
        err.print(f"No env file: {result.no_env_reason}", markup=False, soft_wrap=True)
    if result.outcome != "complete":
        words = {"interrupted": "Interrupted", "time_limit": "The time limit was reached"}[result.outcome]
        err.print(
            f"{words}; what is done is saved. Go on with: nccltune scan --resume {shlex.quote(str(result.run.path))}",
            markup=False,
            soft_wrap=True,
        )
    elif result.quality_problem:
        err.print(f"Quality gate failed: {result.quality_problem}.", markup=False, soft_wrap=True)


def _document(result: "ScanResult", failed: list[Any]) -> dict[str, Any]:
    return {
        "schema": "nccltune.scan",
        "schema_version": 1,
        "run": str(result.run.path),
        "run_id": result.run.manifest.run_id,
        "status": result.run.manifest.status,
        "backend": result.run.manifest.backend,
        "num_ranks": result.run.manifest.num_ranks,
        "counts": result.counts,
        "best": result.fit.best if result.fit else None,
        "tied_with_best": result.fit.tied_with_best if result.fit else [],
        "beside": [b.model_dump(mode="json", exclude={"points"}) for b in result.fit.beside] if result.fit else [],
        "failures": [{"setting": m.setting.name, "size_bytes": m.size_bytes, "status": m.status, "error": m.error.model_dump() if m.error else None} for m in failed],
        "env_file": result.env_file,
        "confirmations": [c.model_dump() for c in result.run.manifest.confirmations],
        "quality_problem": result.quality_problem or None,
        "warnings": [*result.notes, *(result.fit.warnings if result.fit else [])],
    }  # fmt: skip
