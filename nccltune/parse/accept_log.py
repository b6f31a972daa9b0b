"""Accept lengths from an engine's own text: SGLang logs and metrics, bench results, vLLM's SpecDecoding lines.

Only accept lengths are used: printed rates have two definitions (with and without the bonus token) across versions.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from nccltune.errors import InputError

_SGLANG = re.compile(r"Decode batch.*?accept len: (\d+(?:\.\d+)?)")
_DECODE = re.compile(r"Decode batch[.,]")
_GAUGE = re.compile(r"^sglang:spec_accept_length(?:\{([^}]*)\})?\s+(\S+)", re.MULTILINE)
_DRAFT_GAUGE = re.compile(r"^sglang:spec_num_draft_tokens(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE)
_BENCH = re.compile(r"^Accept length:\s+(\d+(?:\.\d+)?)", re.MULTILINE)
_VLLM = re.compile(r"SpecDecoding metrics:.*")
_VLLM_LENGTH = re.compile(r"Mean acceptance length: (\d+(?:\.\d+)?)")
_VLLM_COUNTS = re.compile(r"Accepted: (\d+) tokens, Drafted: (\d+) tokens")
_VLLM_POSITIONS = re.compile(r"Per-position acceptance rate: ([\d., ]+)")
_SGLANG_ARGS = re.compile(r"speculative_num_(draft_tokens|steps)=(\d+)")
_MAX_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class AcceptLog:
    """What a text says about acceptance. ``mean`` is an accept length with the bonus token."""

    mean: float
    values: list[float]
    form: str
    num_drafts: int | None = None
    """Drafts per verify, where the text tells."""
    survival: list[float] | None = None
    warnings: list[str] = field(default_factory=list)


def read_accept_log(path: Path) -> AcceptLog:
    """Read accept lengths from a file; raises InputError if it has none."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{path} is larger than 512 MiB", "", "cut out the part with the decode lines")
        text = path.read_bytes().decode("utf-8-sig", errors="replace")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", "", "check the path") from None
    except OSError as error:
        raise InputError(f"cannot read {path}", str(error), "check the path and its permissions") from error
    return parse_accept_log(text, str(path))


def parse_accept_log(text: str, where: str) -> AcceptLog:
    """Find the accept lengths in an engine's text, whichever of the known forms it has."""
    text = text.replace("\r\n", "\n")
    for reader in (_vllm, _gauges, _bench_lines, _bench_text, _sglang):
        found = reader(text)
        if found is not None:
            return found
    if _DECODE.search(text):
        raise InputError(f"{where} has decode lines without an accept length", "the server ran without speculation, or before it printed them", "give a log of a server with speculation on")  # fmt: skip
    raise InputError(
        f"{where} has no accept length",
        "known: SGLang decode lines and metrics, bench_serving output, vLLM SpecDecoding lines",
        "give one of these, or --accept-length",
    )


def _sglang(text: str) -> AcceptLog | None:
    values = [float(v) for v in _SGLANG.findall(text)]
    drafts = {int(n) - 1 if what == "draft_tokens" else int(n) for what, n in _SGLANG_ARGS.findall(text)}
    return _result(values, "SGLang decode lines", drafts.pop() if len(drafts) == 1 else None)


def _gauges(text: str) -> AcceptLog | None:
    found = [(labels, _number(value)) for labels, value in _GAUGE.findall(text)]
    unified = [v for labels, v in found if 'engine_type="unified"' in labels]
    other = [v for labels, v in found if 'engine_type="draft"' not in labels]
    values = [v for v in (unified or other) if v is not None and v > 0]
    tokens = [v for v in map(_number, _DRAFT_GAUGE.findall(text)) if v is not None and v >= 2]
    return _result(values, "SGLang metrics", int(tokens[0]) - 1 if tokens else None)


def _bench_lines(text: str) -> AcceptLog | None:
    lines = [line for line in text.splitlines() if line.lstrip().startswith("{")]
    values = []
    for line in lines:
        try:
            value = json.loads(line).get("accept_length")
        except (ValueError, AttributeError):
            continue  # a line cut by a crash, or another program's
        if isinstance(value, int | float) and not isinstance(value, bool):
            values.append(float(value))
    return _result(values, "bench_serving results", None)


def _bench_text(text: str) -> AcceptLog | None:
    return _result([float(v) for v in _BENCH.findall(text)], "bench_serving output", None)


def _vllm(text: str) -> AcceptLog | None:
    values, weights, positions = [], [], []
    for line in _VLLM.findall(text):
        length, counts, rates = _VLLM_LENGTH.search(line), _VLLM_COUNTS.search(line), _VLLM_POSITIONS.search(line)
        if length is None:
            continue
        values.append(float(length.group(1)))
        weights.append(float(counts.group(2)) if counts else 1.0)
        if rates:
            positions.append([float(r) for r in rates.group(1).strip(" ,").split(",")])
    if not values:
        return None
    mean = sum(v * w for v, w in zip(values, weights, strict=True)) / max(sum(weights), 1e-12)
    widths = {len(p) for p in positions}
    survival = None
    if len(positions) == len(values) and len(widths) == 1 and sum(weights) > 0:
        columns = zip(*positions, strict=True)
        survival = [sum(r * w for r, w in zip(c, weights, strict=True)) / sum(weights) for c in columns]
    return AcceptLog(mean, values, "vLLM SpecDecoding lines", widths.pop() if len(widths) == 1 else None, survival)


def _result(values: list[float], form: str, num_drafts: int | None) -> AcceptLog | None:
    good = [v for v in values if v >= 1.0]
    if not good:
        return None
    warnings = [f"{len(values) - len(good)} accept lengths below 1 left out: impossible with the bonus token"] if len(good) < len(values) else []  # fmt: skip
    if len(good) > 1 and form == "bench_serving results" and max(good) - min(good) > 0.02 * max(good):
        warnings.append("the file holds several runs with different accept lengths: their mean is used")
    return AcceptLog(sum(good) / len(good), good, form, num_drafts, None, warnings)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None
