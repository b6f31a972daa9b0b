"""Results that engines print or serve besides log lines: bench_serving (text and JSON lines), Prometheus, server state."""

import json
import re
from typing import Any

from nccltune.parse.numbers import Unread, number

_BANNER = re.compile(r"^=+ .*Benchmark Result.*=+\s*$")
_ENTRY = re.compile(r"^\s*([A-Z][^:]*?)\s*:\s+(\S.*?)\s*$")
# Label in the printed table, lower case and without units -> field. "reqeuest" is how SGLang spelt it for a while.
_LABELS = {
    "backend": "backend",
    "traffic request rate": "request_rate",
    "max request concurrency": "max_concurrency",
    "max reqeuest concurrency": "max_concurrency",
    "maximum request concurrency": "max_concurrency",
    "successful requests": "num_completed",
    "benchmark duration": "duration_s",
    "request throughput": "request_throughput_per_s",
    "output token throughput": "output_throughput_tok_s",
    "concurrency": "concurrency",
    "accept length": "accept_length",
    "acceptance length": "accept_length",
    "mean tpot": "mean_tpot_ms",
    "median tpot": "median_tpot_ms",
    "mean itl": "mean_itl_ms",
    "median itl": "median_itl_ms",
    "mean ttft": "mean_ttft_ms",
    "median ttft": "median_ttft_ms",
}
_KEYS = {
    "backend": "backend",
    "request_rate": "request_rate",
    "max_concurrency": "max_concurrency",
    "completed": "num_completed",
    "duration": "duration_s",
    "request_throughput": "request_throughput_per_s",
    "output_throughput": "output_throughput_tok_s",
    "concurrency": "concurrency",
    "accept_length": "accept_length",
    "spec_decode_acceptance_length": "accept_length",
    "mean_tpot_ms": "mean_tpot_ms",
    "median_tpot_ms": "median_tpot_ms",
    "mean_itl_ms": "mean_itl_ms",
    "mean_ttft_ms": "mean_ttft_ms",
    "random_input_len": "input_length",
    "random_output_len": "output_length",
}
_WORDS = ("backend", "request_rate", "max_concurrency")  # not always numbers: "inf", "not set"
_ABSENT = ("not set", "none", "n/a")
_METRIC = re.compile(r"^((?:sglang|vllm):\w+)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_USED = re.compile(r":(?:spec_|gen_throughput|num_running_reqs|num_requests_running|is_cuda_graph)")
_NEXT = re.compile(r"[^\s,]")
_DECODER = json.JSONDecoder()


def bench_tables(text: str, unread: Unread) -> list[dict[str, Any]]:
    """Read every "Serving Benchmark Result" table in ``text``; what is no number goes to ``unread``."""
    results: list[dict[str, Any]] = []
    for line in text.splitlines():
        if _BANNER.match(line.strip()):
            results.append({"type": "bench", "accept_length": None, "max_concurrency": None})
            continue
        match = _ENTRY.match(line) if results else None
        label = _LABELS.get(re.sub(r"\s*\([^)]*\)", "", match[1]).strip().lower()) if match else None
        if match is not None and label is not None:
            results[-1][label] = _cell(label, match[2], unread)
    return results


def json_results(text: str, unread: Unread) -> list[dict[str, Any]]:
    """Read JSON documents (one per line, or one spread over lines): bench results, server state, request metadata.

    Broken lines, documents of another kind and values that are no numbers go to ``unread``.
    """
    text = text.removeprefix("\ufeff")
    results: list[dict[str, Any]] = []
    position = 0
    while match := _NEXT.search(text, position):
        try:
            document, position = _DECODER.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            # A line cut in the middle: go on behind it.
            unread.num_broken += 1
            newline = text.find("\n", match.start())
            position = newline + 1 if newline >= 0 else len(text)
            continue
        for entry in document if isinstance(document, list) else [document]:
            found = _document(entry, unread)
            unread.num_unknown += found is None
            results += found or []
    return results


def metrics(text: str, unread: Unread | None = None) -> list[dict[str, Any]]:
    """Read Prometheus text of SGLang or vLLM: one record per engine, rank 0 only, the draft model's own gauges left out."""
    notes = unread if unread is not None else Unread()
    series: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in text.splitlines():
        match = _METRIC.match(line.strip())
        if match is None:
            continue
        # Quantiles of an empty summary are NaN by Prometheus's own rule: only the gauges used here are worth a warning.
        value = notes.number(match[1], match[3]) if _USED.search(match[1]) else number(match[3])
        if value is not None:
            series.setdefault(match[1], []).append((dict(_LABEL.findall(match[2] or "")), value))
    records = [_sglang_metrics(series)] if any(name.startswith("sglang:") for name in series) else []
    records += [_vllm_metrics(series)] if any(name.startswith("vllm:") for name in series) else []
    return records


def _document(entry: object, unread: Unread) -> list[dict[str, Any]] | None:
    """Records of one document; None where it is of no kind known here."""
    if not isinstance(entry, dict):
        return None
    states = entry.get("internal_states")
    if isinstance(states, list):
        return [
            {
                "type": "server_state",
                "accept_length": unread.number("avg_spec_accept_length", state.get("avg_spec_accept_length")),
                "gen_throughput_tok_s": unread.number("last_gen_throughput", state.get("last_gen_throughput")),
            }
            for state in states
            if isinstance(state, dict)
        ]
    meta = entry.get("meta_info")
    if isinstance(meta, dict):
        length = unread.number("spec_accept_length", meta.get("spec_accept_length"))
        return [{"type": "request", "accept_length": length}] if "spec_accept_length" in meta else []
    if not {"output_throughput", "accept_length"} & entry.keys():
        return None
    record: dict[str, Any] = {"type": "bench", "accept_length": None, "max_concurrency": None}
    for key, name in _KEYS.items():
        if entry.get(key) is not None:
            record[name] = _word(entry[key]) if name in _WORDS else _kept(entry[key], unread.number(key, entry[key]))
    return [record]


def _word(value: object) -> float | int | str:
    """A field that need not be a number; an infinite request rate is ``inf``, as the engines print it."""
    known = number(value) is not None and isinstance(value, int | float)
    return value if known else str(value)  # type: ignore[return-value]


def _kept(value: object, read: float | None) -> float | int | None:
    """The number as it was written: whole ones stay whole."""
    return value if read is not None and isinstance(value, int | float) else read


def _cell(label: str, text: str, unread: Unread) -> float | int | str | None:
    if text.lower() in _ABSENT:
        return None
    value = number(text) if label in _WORDS else unread.number(label, text)
    if value is None:
        return text if label in _WORDS else None
    return int(value) if re.fullmatch(r"\d+", text) else value


def _sglang_metrics(series: dict[str, list[tuple[dict[str, str], float]]]) -> dict[str, Any]:
    def gauge(name: str) -> float | None:
        """The target's gauge of rank 0; several data-parallel replicas are averaged."""
        values = [
            value
            for labels, value in series.get(f"sglang:{name}", [])
            if labels.get("engine_type") != "draft"
            and labels.get("tp_rank", "0") == "0"
            and labels.get("pp_rank", "0") == "0"
        ]
        return sum(values) / len(values) if values else None

    graph = gauge("is_cuda_graph")
    return {
        "type": "metrics",
        "engine": "sglang",
        "accept_length": gauge("spec_accept_length") or None,
        "accept_rate": gauge("spec_accept_rate"),
        "gen_throughput_tok_s": gauge("gen_throughput"),
        "num_running": gauge("num_running_reqs"),
        "cuda_graph": bool(graph) if graph is not None else None,
    }


def _vllm_metrics(series: dict[str, list[tuple[dict[str, str], float]]]) -> dict[str, Any]:
    def total(name: str) -> float | None:
        values = [value for key in (name, f"{name}_total") for _, value in series.get(f"vllm:{key}", [])]
        return sum(values) if values else None

    drafts, drafted = total("spec_decode_num_drafts"), total("spec_decode_num_draft_tokens")
    accepted = total("spec_decode_num_accepted_tokens")
    return {
        "type": "metrics",
        "engine": "vllm",
        # A verify emits its accepted drafts and one more token.
        "accept_length": 1 + accepted / drafts if drafts and accepted is not None else None,
        "accept_rate": accepted / drafted if drafted and accepted is not None else None,
        "gen_throughput_tok_s": None,
        "num_running": total("num_requests_running"),
        "cuda_graph": None,
    }
