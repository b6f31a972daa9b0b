"""How a trace report looks in a terminal."""

from nccltune.cli import _console
from nccltune.schemas.trace import SCHEMA, ForwardKind, TraceReport
from nccltune.units import format_percent, format_us

_COLUMNS = [
    ("kernel", "left"), ("method", "left"), ("algo", "left"), ("per forward", "right"), ("median us", "right"), ("us per forward", "right"), ("blocks", "right"),
]  # fmt: skip
_NAME_WIDTH = 70


def show(found: TraceReport, *, as_json: bool) -> None:
    """Print the document, or what carries the all-reduces, their number and their time."""
    if as_json:
        _console.print_json({"schema": SCHEMA, **found.model_dump(mode="json")})
        return
    out = _console.stdout()
    for line in _lines(found):
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    if found.target is not None:
        out.print()
        out.print(_console.table("Collectives of the target's forward", _COLUMNS, _rows(found.target)))


def _lines(found: TraceReport) -> list[str]:
    lines = [f"{found.kind}, {found.num_devices} device(s); forwards by {found.delimited_by}"]
    if found.methods:
        matter = {
            True: "NCCL carries them: its settings matter",
            False: "NCCL does not carry them: its settings do not matter",
            None: "",
        }
        lines.append(f"all-reduce by: {', '.join(found.methods)}. {matter[found.nccl_settings_matter]}".strip())
    target = found.target
    if target is not None:
        check = {True: f", as the model file of {found.model} says", False: f", the model file of {found.model} says {found.expected_allreduces}", None: ""}  # fmt: skip
        lines.append(f"{target.num_forwards} forwards with {target.allreduces_per_forward:g} all-reduces and {target.allgathers_per_forward:g} all-gathers each{check[found.count_confirmed]}")  # fmt: skip
        step = f", {format_us(target.step_us)} us from one to the next" if target.step_us else ""
        lines.append(
            f"all-reduces: {format_us(target.allreduce_us)} us of {format_us(target.span_us)} us a forward{step}"
        )
    if found.predicted_allreduce_us is not None and found.error_percent is not None:
        p = found.predicted_allreduce_us
        lines.append(f"predicted from the run: {format_us(p.value)} us [{format_us(p.low)}, {format_us(p.high)}] ({format_percent(found.error_percent)})")  # fmt: skip
    lines += [f"also {k.num_forwards} forwards with {k.allreduces_per_forward:g} all-reduces (a drafter, or a part of the model)" for k in found.others]  # fmt: skip
    return lines + ([f"{found.outside_allreduces} all-reduces outside these (prefill, eager parts)"] if found.outside_allreduces else [])  # fmt: skip


def _rows(kind: ForwardKind) -> list[list[str]]:
    return [
        [k.name[:_NAME_WIDTH], k.method, k.algo or "-", f"{k.per_forward:g}", format_us(k.median_us), format_us(k.total_us), str(k.num_blocks or "-")]
        for k in kind.kernels
    ]  # fmt: skip
