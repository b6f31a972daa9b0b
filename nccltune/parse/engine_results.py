"""Results that engines print or serve besides log lines: bench_serving (text and JSON lines), Prometheus, server state."""

import json
import re
from typing import Any

from nccltune.parse.engine_lines import number

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
_METRIC = re.compile(r"^((?:sglang|vllm):\w+)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_NEXT = re.compile(r"[^\s,]")
_DECODER = json.JSONDecoder()


def bench_tables(text: str) -> list[dict[str, Any]]:
    """Read every "Serving Benchmark Result" table in ``text``."""
    results: list[dict[str, Any]] = []
    for line in text.splitlines():
        if _BANNER.match(line.strip()):
            results.append({"type": "bench", "accept_length": None, "max_concurrency": None})
            continue
        match = _ENTRY.match(line) if results else None
        label = _LABELS.get(re.sub(r"\s*\([^)]*\)", "", match[1]).strip().lower()) if match else None
        if match is not None and label is not None:
            results[-1][label] = _cell(match[2])
    return results


def json_results(text: str) -> list[dict[str, Any]]:
    """Read JSON documents (one per line, or one spread over lines): bench results, server state, request metadata."""
    text = text.removeprefix("\ufeff")
    results: list[dict[str, Any]] = []
    position = 0
    while match := _NEXT.search(text, position):
        try:
            document, position = _DECODER.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            # A line cut in the middle: go on behind it.
            newline = text.find("\n", match.start())
            position = newline + 1 if newline >= 0 else len(text)
            continue
        for entry in document if isinstance(document, list) else [document]:
            results += _document(entry)
    return results


def metrics(text: str) -> list[dict[str, Any]]:
    """Read Prometheus text of SGLang or vLLM: one record per engine, rank 0 only, the draft model's own gauges left out."""
    series: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in text.splitlines():
        match = _METRIC.match(line.strip())
        value = number(match[3]) if match else None
        if match is not None and value is not None:
            series.setdefault(match[1], []).append((dict(_LABEL.findall(match[2] or "")), value))
    records = [_sglang_metrics(series)] if any(name.startswith("sglang:") for name in series) else []
    records += [_vllm_metrics(series)] if any(name.startswith("vllm:") for name in series) else []
    return records


def _document(entry: object) -> list[dict[str, Any]]:
    if not isinstance(entry, dict):
        return []
    states = entry.get("internal_states")
    if isinstance(states, list):
        return [
            {
                "type": "server_state",
                "accept_length": number(state.get("avg_spec_accept_length")),
                "gen_throughput_tok_s": number(state.get("last_gen_throughput")),
            }
            for state in states
            if isinstance(state, dict)
        ]
    meta = entry.get("meta_info")
    if isinstance(meta, dict) and "spec_accept_length" in meta:
        return [{"type": "request", "accept_length": number(meta["spec_accept_length"])}]
    if not {"output_throughput", "accept_length"} & entry.keys():
        return []
    record: dict[str, Any] = {"type": "bench", "accept_length": None, "max_concurrency": None}
    for key, name in _KEYS.items():
        if entry.get(key) is not None:
            record[name] = entry[key]
    return [record]


def _cell(text: str) -> float | int | str | None:
    if text.lower() in ("not set", "none", "n/a", "nan"):
        return None
    value = number(text)
    if value is None:
        return text
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
