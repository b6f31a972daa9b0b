"""Read a profiler's trace into kernels: torch profiler (Chrome trace, .json or .json.gz) and Nsight Systems' CSV reports."""

import csv
import gzip
import io
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nccltune.errors import InputError
from nccltune.schemas.trace import TraceKind

_MAX_BYTES = 4 * 1024**3
_UNITS_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
_ADVICE = "give a torch profiler trace (.json, .json.gz), or a CSV of 'nsys stats -r cuda_gpu_trace --format csv'"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel execution. ``correlation``: shared by all kernels of one CUDA graph launch."""

    name: str
    start_us: float
    duration_us: float
    device: int = 0
    correlation: int | None = None
    num_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class Annotation:
    """A named range of GPU time."""

    name: str
    start_us: float
    end_us: float
    device: int = 0


@dataclass
class Trace:
    """Kernels in the order of their start. ``totals``: name -> (instances, total us), where only a summary is known."""

    kind: TraceKind
    kernels: list[Kernel] = field(default_factory=list)
    graph_launches: set[tuple[int, int]] = field(default_factory=set)
    """Device and correlation id of every launch that ran several kernels: a plain launch runs one, a graph's many."""
    annotations: list[Annotation] = field(default_factory=list)
    totals: dict[str, tuple[int, float]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def read_trace(path: Path) -> Trace:
    """Read a trace file; raises InputError for anything else, for a cut one and for one without GPU kernels."""
    text = _text(path)
    trace = _chrome(text, path) if text.lstrip()[:1] in ("{", "[") else _nsys(text, path)
    if not trace.kernels and not trace.totals:
        raise InputError(f"{path} holds no GPU kernel", "the profiler recorded no GPU activity, or another report was exported", _ADVICE)  # fmt: skip
    trace.kernels.sort(key=lambda k: k.start_us)
    launches = Counter((k.device, k.correlation) for k in trace.kernels if k.correlation is not None)
    trace.graph_launches = {launch for launch, count in launches.items() if count > 1}
    return trace


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if is_gzip else path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", "", "check the path") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {path}", str(error), "the file may be cut off: export it again") from error
    if len(data) > _MAX_BYTES:
        raise InputError(f"{path} is larger than 4 GiB", "", "profile fewer steps")
    text = data.decode("utf-8-sig", errors="replace")
    if not text.strip():
        raise InputError(f"{path} is empty", "", _ADVICE)
    return text


def _chrome(text: str, path: Path) -> Trace:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON", str(error), "the trace may be cut off: export it again") from error
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise InputError(f"{path} is not a Chrome trace", "it has no traceEvents", _ADVICE)
    trace = Trace("torch-profiler")
    complete = (e for e in events if isinstance(e, dict) and e.get("ph", "X") == "X")
    num_lost = sum(not _event(event, trace) for event in complete)
    if num_lost:
        trace.warnings.append(_lost(num_lost))
    return trace


def _lost(number: int) -> str:
    return f"{number} kernels without a readable start or duration are left out: counts and times may be too low"


def _event(event: dict[str, Any], trace: Trace) -> bool:
    """Take what is a kernel or a GPU annotation; False for one whose times cannot be read."""
    category, name = str(event.get("cat", "")).lower(), str(event.get("name", ""))
    args = event.get("args") if isinstance(event.get("args"), dict) else {}
    assert isinstance(args, dict)
    if category not in ("kernel", "gpu_user_annotation"):
        return True
    start, duration = _finite(event.get("ts")), _finite(event.get("dur"))
    if start is None or duration is None or duration < 0:
        return False
    device = _whole(args.get("device"))
    device = _whole(event.get("pid")) if device is None else device
    if category == "kernel":
        grid = args.get("grid")
        blocks = _whole(grid[0]) if isinstance(grid, list) and grid else None
        trace.kernels.append(Kernel(name, start, duration, device or 0, _whole(args.get("correlation")), blocks))
    else:
        trace.annotations.append(Annotation(name, start, start + duration, device or 0))
    return True


def _nsys(text: str, path: Path) -> Trace:
    """The header is the first line that names its columns; ``nsys stats`` prints progress lines above it."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        columns = _columns(next(csv.reader([line]), []))
        if "name" in columns and ("start" in columns or "instances" in columns):
            rows = csv.reader(io.StringIO("\n".join(lines[number + 1 :])))
            return _gpu_trace(rows, columns) if "start" in columns else _kernel_sum(rows, columns)
    raise InputError(f"{path} is no trace", "it is neither JSON nor a CSV of Nsight Systems with kernel names", _ADVICE)


def _columns(cells: list[str]) -> dict[str, tuple[int, float]]:
    """Column name without its unit, in lower case -> (position, factor to microseconds): ``Start (ns)``."""
    found: dict[str, tuple[int, float]] = {}
    for position, cell in enumerate(cells):
        match = re.match(r"^\s*(.*?)\s*(?:\((\w+|%)\))?\s*$", cell)
        assert match is not None
        found.setdefault(match[1].lower(), (position, _UNITS_US.get(match[2] or "ns", 1.0)))
    return found


def _gpu_trace(rows: Iterable[list[str]], columns: dict[str, tuple[int, float]]) -> Trace:
    trace = Trace("nsys-gpu-trace")
    num_lost = 0
    for row in rows:
        name = _cell(row, columns, "name")
        start, duration = (_time(row, columns, key) for key in ("start", "duration"))
        if not name or name.startswith(("[CUDA mem", "[CUDA Mem")):
            continue
        if start is None or duration is None:
            num_lost += 1
            continue
        correlation, device = _whole(_cell(row, columns, "corrid")), _device(_cell(row, columns, "device"))
        trace.kernels.append(Kernel(name, start, duration, device, correlation, _whole(_cell(row, columns, "grdx"))))
    if num_lost:
        trace.warnings.append(_lost(num_lost))
    return trace


def _kernel_sum(rows: Iterable[list[str]], columns: dict[str, tuple[int, float]]) -> Trace:
    trace = Trace("nsys-kernel-sum")
    for row in rows:
        name, count = _cell(row, columns, "name"), _whole(_cell(row, columns, "instances"))
        total = _time(row, columns, "total time")
        if name and count and total is not None:
            before = trace.totals.get(name, (0, 0.0))
            trace.totals[name] = (before[0] + count, before[1] + total)
    return trace


def _cell(row: list[str], columns: dict[str, tuple[int, float]], key: str) -> str:
    position = columns.get(key, (len(row), 1.0))[0]
    return row[position].strip() if position < len(row) else ""


def _time(row: list[str], columns: dict[str, tuple[int, float]], key: str) -> float | None:
    value = _finite(_cell(row, columns, key).replace(",", ""))
    return None if value is None or key not in columns else value * columns[key][1]


def _device(text: str) -> int:
    """``NVIDIA H200 (1)`` -> 1."""
    match = re.search(r"\((\d+)\)\s*$", text)
    return int(match[1]) if match else 0


def _finite(value: object) -> float | None:
    if isinstance(value, str) and "_" in value:  # Python's own 1_000, which no profiler writes
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _whole(value: object) -> int | None:
    number = _finite(value)
    return int(number) if number is not None and number == int(number) else None
