"""Logs, benchmark results and metrics of SGLang (0.4.1 to 0.5.14) and vLLM as one record: accept length, decode rate, graphs."""

import re
import statistics
from dataclasses import dataclass, field
from typing import Any

from nccltune.parse.accept_rate import AcceptRate, summarize_rates
from nccltune.parse.bounded import bound_lines
from nccltune.parse.engine_lines import DecodeLine, PrefillLine, batch_line, event
from nccltune.parse.engine_results import bench_tables, json_results, metrics
from nccltune.parse.nccl_errors import classify_nccl_error
from nccltune.parse.numbers import Unread
from nccltune.schemas.measurement import Failure

_IDLE = "first line after a start or a prefill: its interval holds idle time"
_PREFILL = "its interval holds a prefill or idle time"
_NO_VERIFY = "no verify happened in its interval"
_IMPOSSIBLE = "below 1: impossible with the bonus token"
# A line behind a prefill counts as disturbed below this share of the undisturbed lines of the same batch size.
_DISTURBED_SHARE = 0.5
# The line with the server's arguments is about 12,000 characters long.
_MAX_LINE = 32768


@dataclass(slots=True)
class EngineLog:
    """What a serving engine said about itself."""

    engine: str | None = None
    accept_lengths: list[float] = field(default_factory=list)
    """Tokens per verify, bonus token included, one per line or result."""
    excluded_lengths: list[float] = field(default_factory=list)
    """Printed lengths that are none: below 1, though a verify emits at least the bonus token (0: no verify happened)."""
    accept_rate: AcceptRate = field(default_factory=AcceptRate)
    decode_lines: list[DecodeLine] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    """Benchmark results, metrics and other events, in order."""
    unread: Unread = field(default_factory=Unread)
    error: Failure | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def accept_length(self) -> float | None:
        """Mean accept length; None without speculation: an absent figure is neither 0 nor 1."""
        return statistics.fmean(self.accept_lengths) if self.accept_lengths else None

    @property
    def cuda_graph(self) -> bool | str | None:
        """True, False or "mixed" over the decode lines; None where nothing says."""
        flags = {line.cuda_graph for line in self.decode_lines} | {r.get("cuda_graph") for r in self.results}
        flags.discard(None)
        return "mixed" if len(flags) > 1 else flags.pop() if flags else None

    @property
    def custom_all_reduce(self) -> bool | None:
        """False where the engine says that its own all-reduce is off, so that NCCL carries every all-reduce."""
        off = any(r["type"] == "custom_all_reduce" or r.get("disable_custom_all_reduce") is True for r in self.results)
        return False if off else None

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the text was understood."""
        return not (self.decode_lines or self.results or self.error)

    def decode_rates(self) -> list[tuple[int | None, float]]:
        """(running requests, tokens/s) of every line whose interval is pure decode."""
        lines = [(r.num_running, r.tokens_per_s) for r in self.decode_lines if not r.excluded]
        more = [
            (r.get("num_running"), r["gen_throughput_tok_s"])
            for r in self.results
            if r.get("gen_throughput_tok_s") and r["type"] != "server_state"
        ]
        return [
            (int(running) if running is not None else None, rate) for running, rate in lines + more if rate is not None
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``import --json``."""
        lengths = self.accept_lengths
        outputs = [r["output_throughput_tok_s"] for r in self.results if r.get("output_throughput_tok_s") is not None]
        return {
            "kind": "engine-log",
            "engine": self.engine,
            "accept_length": self._lengths_json() if lengths else None,
            "accept_rate": self.accept_rate.to_json(),
            "decode_tokens_per_s": self._decode_json(),
            "output_throughput_tok_s": outputs[0] if len(outputs) == 1 else None,
            "cuda_graph": self.cuda_graph,
            "custom_all_reduce": self.custom_all_reduce,
            "error": {"kind": self.error.kind, "message": self.error.message} if self.error else None,
            "records": [*[line.to_json() for line in self.decode_lines], *self.results],
            "warnings": self.warnings,
        }

    def _lengths_json(self) -> dict[str, Any]:
        excluded = [{"value": v, "reason": _NO_VERIFY if v == 0 else _IMPOSSIBLE} for v in self.excluded_lengths]
        found: dict[str, Any] = {"values": self.accept_lengths, "mean": self.accept_length}
        return found | ({"excluded": excluded} if excluded else {})

    def _decode_json(self) -> dict[str, Any] | None:
        rates = self.decode_rates()
        excluded = [
            {"value": line.tokens_per_s, "reason": line.excluded}
            for line in self.decode_lines
            if line.excluded and line.tokens_per_s is not None
        ]
        if not rates and not excluded:
            return None
        groups: dict[str, list[float]] = {}
        for running, rate in rates:
            groups.setdefault(str(running) if running is not None else "unknown", []).append(rate)
        return {
            "median": statistics.median([rate for _, rate in rates]) if rates else None,
            "values": [rate for _, rate in rates],
            "by_num_running": {running: statistics.median(group) for running, group in groups.items()},
            "excluded": excluded,
        }


def parse_engine_log(text: str) -> EngineLog:
    """Read a log, a benchmark's output or a metrics page; a text that is none of them gives an empty record."""
    text = text.removeprefix("\ufeff")
    log = EngineLog()
    # A log line starts with "[2026-"; a list of results with "[{".
    if re.match(r"\s*(?:\{|\[\s*\{)", text):
        log.results = json_results(text, log.unread)
    if not log.results:
        log.unread = Unread()
        text = bound_lines(text, _MAX_LINE)
        _read_lines(log, text)
        log.results += bench_tables(text, log.unread) + metrics(text, log.unread)
    _exclude(log.decode_lines)
    _gather(log)
    log.engine = _engine(log, text)
    log.error = classify_nccl_error(text)
    log.warnings = _warnings(log)
    return log


def _read_lines(log: EngineLog, text: str) -> None:
    prefilled: set[str] = set()
    for line in text.splitlines():
        batch = batch_line(line, log.unread) if " batch" in line else None
        if isinstance(batch, PrefillLine):
            prefilled.add(batch.rank)
        elif isinstance(batch, DecodeLine):
            batch.follows_prefill = batch.rank in prefilled
            prefilled.discard(batch.rank)
            log.decode_lines.append(batch)
        elif (found := event(line, log.unread)) is not None:
            log.results.append(found)


def _exclude(lines: list[DecodeLine]) -> None:
    """Mark lines whose rate is not decode alone: SGLang divides by the time since the line before, whatever filled it."""
    seen: set[str] = set()
    steady: dict[int | None, list[float]] = {}
    for line in lines:
        if line.tokens_per_s is not None and not line.follows_prefill and line.rank in seen:
            steady.setdefault(line.num_running, []).append(line.tokens_per_s)
        seen.add(line.rank)
    usual = {running: statistics.median(rates) for running, rates in steady.items()}
    seen.clear()
    for line in lines:
        is_first = line.rank not in seen
        seen.add(line.rank)
        if line.tokens_per_s is None or not (is_first or line.follows_prefill):
            continue
        is_slow = line.tokens_per_s < _DISTURBED_SHARE * usual.get(line.num_running, 0.0)
        if is_first and (line.follows_prefill or is_slow):
            line.excluded = _IDLE
        elif is_slow:
            line.excluded = _PREFILL


def _gather(log: EngineLog) -> None:
    """Collect lengths and rates over lines and results; a length below 1 is not one (no verify happened)."""
    width = next((r.get("speculative_num_draft_tokens") for r in log.results if r["type"] == "server_args"), None)
    pairs: list[tuple[float | None, float]] = []
    for length, rate in [
        *[(line.accept_length, line.accept_rate) for line in log.decode_lines],
        *[(r.get("accept_length"), r.get("accept_rate")) for r in log.results],
    ]:
        if isinstance(length, int | float):
            (log.accept_lengths if length >= 1 else log.excluded_lengths).append(float(length))
        if isinstance(rate, int | float):
            pairs.append((length, float(rate)))
    log.accept_rate = summarize_rates(pairs, width if isinstance(width, int) else None)


def _engine(log: EngineLog, text: str) -> str | None:
    if log.decode_lines:
        return "sglang"
    if any(r["type"] in ("speculation", "throughput") or r.get("engine") == "vllm" for r in log.results):
        return "vllm"
    for record in log.results:
        backend = str(record.get("backend", ""))
        if backend:
            return (
                "vllm" if backend.startswith(("vllm", "openai")) else "sglang" if backend.startswith("sglang") else None
            )
    if "vllm" in text and "sglang" not in text:
        return "vllm"
    return "sglang" if log.results else None


def _warnings(log: EngineLog) -> list[str]:
    warnings = log.unread.warnings()
    if impossible := [v for v in log.excluded_lengths if v != 0]:
        shown = ", ".join(f"{value:g}" for value in impossible[:5])
        warnings.append(f"accept lengths below 1 left out ({shown}): impossible with the bonus token")
    rate = log.accept_rate
    if rate.excluded:
        shown = ", ".join(f"{value:g}" for value in rate.excluded[:5])
        warnings.append(f"accept rate outside 0 to 1 ({shown}): no rate; ignored, use the accept length")
    if rate.values and rate.definition in ("mixed", "ambiguous"):
        why = "two definitions are mixed" if rate.definition == "mixed" else "the definition cannot be told"
        warnings.append(f"accept rates: {why}; they are not comparable, use the accept length")
    retractions = [r for r in log.results if r["type"] == "retraction"]
    if retractions:
        warnings.append(f"{len(retractions)} retraction lines: the KV cache was full, so decode was disturbed")
    ranks = {r.get("rank") for r in log.results if r["type"] == "custom_all_reduce"}
    if ranks:
        warnings.append(
            f"custom all-reduce is off ({len(ranks)} ranks say so): NCCL carries the all-reduce, so its settings matter"
        )
    if log.cuda_graph in (False, "mixed"):
        warnings.append("some or all decode batches ran without a CUDA graph: their times include launches")
    if len({line.num_running for line in log.decode_lines}) > 1:
        warnings.append("decode lines of several batch sizes: compare within by_num_running, not the median")
    benches = [r for r in log.results if r["type"] == "bench"]
    if len(benches) > 1:
        warnings.append(f"{len(benches)} benchmark results: compare those with the same max_concurrency")
    if len(log.decode_lines) == 1 and not log.decode_lines[0].excluded:
        warnings.append("one decode line only: its rate may include idle time")
    return warnings
