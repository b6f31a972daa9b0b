"""How a prediction looks in a terminal."""

from rich.console import Console

from nccltune.cli import _console
from nccltune.schemas.common import Value
from nccltune.schemas.prediction import Best, Prediction, Row
from nccltune.units import format_percent, format_size

_COLUMNS = [
    ("batch", "right"), ("draft tokens", "right"), ("comm", "right"), ("compute", "right"), ("overhead", "right"),
    ("verify ms", "right"), ("draft+host", "right"), ("cycle ms", "right"), ("accept", "right"), ("tok/s", "right"),
    ("speedup", "right"), ("break-even", "right"), ("source", "left"),
]  # fmt: skip


def show(out: Console, found: Prediction) -> None:
    """Print the table, the answer in two lines, what to look at first, and the explained row."""
    title = f"{found.model} on {found.topology}, {found.ranks} ranks, setting {found.setting.name}, context {found.context_tokens}"
    _print(out, title)
    if found.setting.env:
        _print(out, f"  {found.setting.id}")
    _print(out, f"  basis: {found.basis}")
    if found.what_if:
        _print(out, f"  what-if, not measured: {'; '.join(found.what_if)}")
    _print(
        out,
        f"  acceptance: {found.acceptance.source}"
        + (f" ({found.acceptance.assumption})" if found.acceptance.assumption else ""),
    )
    out.print()
    out.print(_console.table("", _COLUMNS, [_cells(row) for row in found.rows]))
    _print(
        out,
        "milliseconds, 90% intervals in brackets; draft+host: drafter, sampling and host of a cycle; break-even: accept length from which speculation pays",
    )
    out.print()
    for line in answer_lines(found):
        _print(out, line)
    for line in found.findings:
        _print(out, f"First thing to look at - {line}")
    if found.explain:
        _explain(out, found)


def answer_lines(found: Prediction) -> list[str]:
    """The answer in two lines."""
    plain = found.baseline
    second = f"Plain decode: {plain.decode_ms.value:.2f} ms a token, {plain.tokens_per_s.value:.1f} tok/s"
    if found.default_setting_baseline:
        default = found.default_setting_baseline
        second += (
            f"; with NCCL's default settings {default.decode_ms.value:.2f} ms, {default.tokens_per_s.value:.1f} tok/s"
        )
    drafted = [r for r in found.rows if r.draft_tokens > 1]
    if not drafted:
        return [second + "; ask for more than 1 draft token to compare speculation with it."]
    if found.best is None:
        need = min(drafted, key=lambda r: r.break_even_accept_length.value / r.draft_tokens)
        first = f"No acceptance is known: speculation with {need.draft_tokens} draft tokens {_pays(need)}"
        return [first + "; give --accept-length, --accept-rates or --accept-log.", second + "."]
    lines = [_best_line(b, len(found.best_by_batch) > 1) for b in found.best_by_batch]
    sensitivity = found.sensitivity
    if sensitivity and sensitivity.tokens_per_s_per_allreduce_us:
        second += f". 1 us per all-reduce is worth {sensitivity.tokens_per_s_per_allreduce_us:.2f} tok/s"
        if sensitivity.tokens_per_s_per_tenth_accept_length:
            second += f", 0.1 of accept length {sensitivity.tokens_per_s_per_tenth_accept_length:.1f}"
    return [*lines, second + "."]


def _pays(row: Row) -> str:
    """From which accept length speculation pays; one lies between 1 (the bonus token alone) and the draft tokens."""
    even = row.break_even_accept_length
    interval = f"{even.value:.2f} [{even.low:.2f}, {even.high:.2f}]"
    if even.high <= 1:
        return "pays at any acceptance"
    if even.value <= 1:
        return f"pays at any acceptance as predicted, at the upper end of the interval from an accept length of {even.high:.2f}"
    if even.low > row.draft_tokens:
        return (
            f"does not pay: that takes an accept length of {interval}, and {row.draft_tokens} is the most there can be"
        )
    return f"pays from an accept length of {interval}"


def _best_line(best: Best, several: bool) -> str:
    where = f"Batch {best.batch_size}: " if several else ""
    gain = format_percent(100 * (best.speedup.value - 1))
    low, high = best.tokens_per_s.low, best.tokens_per_s.high
    if not best.speculate:
        text = f"do not speculate: plain decode gives {best.tokens_per_s.value:.1f} tok/s"
    else:
        text = f"{best.draft_tokens} draft tokens: {best.tokens_per_s.value:.1f} tok/s [{low:.1f}, {high:.1f}], {gain} over plain decode"
    if best.tied_with:
        text += f"; cannot be told from {', '.join(map(str, best.tied_with))}"
        text += " (1 is plain decode)" if 1 in best.tied_with else ""
    return f"{where}{text[0].upper()}{text[1:]}."


def _cells(row: Row) -> list[str]:
    return [
        str(row.batch_size), str(row.draft_tokens), f"{row.comm_ms.value:.2f}", f"{row.compute_ms.value:.2f}",
        f"{row.overhead_ms.value:.2f}" if row.draft_tokens > 1 else "-", _with_interval(row.verify_ms, 2),
        f"{row.draft_ms.value + row.host_ms.value:.2f}" if row.draft_tokens > 1 else "-", f"{row.cycle_ms.value:.2f}",
        f"{row.accept_length.value:.2f}" if row.accept_length else "?", _with_interval(row.tokens_per_s, 1),
        f"{row.speedup.value:.3f}" if row.speedup else "?",
        f"{row.break_even_accept_length.value:.2f}" if row.draft_tokens > 1 else "-", row.verify_ms.source,
    ]  # fmt: skip


def _with_interval(value: Value | None, digits: int) -> str:
    if value is None:
        return "?"
    return f"{value.value:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def _explain(out: Console, found: Prediction) -> None:
    row = found.explained_row
    assert row is not None
    out.print()
    _print(
        out,
        f"Terms at batch {row.batch_size}, {row.draft_tokens} draft tokens; {row.allreduces_per_forward} all-reduces of {format_size(row.allreduce_bytes)} per forward",
    )
    for t in found.explain or []:
        detail = "; ".join(text for text in (t.base, t.parameter, t.source) if text)
        _print(out, f"  {t.group:<10} {t.term:<32} {t.value_ms:8.3f} ms   {detail}")


def _print(out: Console, text: str) -> None:
    out.print(text, markup=False, highlight=False, soft_wrap=True)
