"""Log lines of the serving engines, one record each: decode batches, retractions, custom all-reduce, speculation metrics."""

import re
from dataclasses import dataclass
from typing import Any

from nccltune.parse.numbers import Unread

# "Decode batch. " (0.4), "Decode batch, " (0.5.5 and later), "Decode batch [123], " (SGLANG_LOG_FORWARD_ITERS).
_BATCH = re.compile(r"(?P<phase>Decode|Prefill) batch(?: \[\d+\])?\s*[.,:]\s*(?P<fields>.*)$")
_STAMP = re.compile(r"^\s*(?:\[)?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)")
_RANK = re.compile(r"^[^\]]*?\b((?:(?:DP|TP|PP|EP|ATTN_TP|ATTN_DP|MOE_DP)\d+ ?)+)\]")
_FIELD = re.compile(r"(#?[A-Za-z][A-Za-z #_/-]*(?:\([^)]*\))?)\s*:\s*([^,]+?)\s*(?:,|$)")
_RETRACTION = re.compile(r"#retracted_reqs?\s*:\s*(\d+)")
_CUSTOM_OFF = re.compile(r"Custom all-?reduce is disabled because (.+?)(?:\. To silence|\.?$)", re.IGNORECASE)
_READY = re.compile(r"The server is fired up and ready to roll|Application startup complete")
_ARGS = re.compile(r"server_args=ServerArgs\(|Namespace\(")
_ARG = re.compile(r"\b(speculative_num_draft_tokens|speculative_num_steps|disable_custom_all_reduce|tp_size)=([^,)]+)")
_VLLM_SPEC = re.compile(r"(?:SpecDecoding|Speculative) metrics:\s*(.*)$")
_VLLM_THROUGHPUT = re.compile(r"Avg generation throughput:\s*([^\s,]+)\s*tokens/s(?:, Running: (\d+))?")


@dataclass(slots=True)
class DecodeLine:
    """One decode line of SGLang. None: this version or mode does not print it."""

    time: str | None
    rank: str
    num_running: int | None
    num_tokens: int | None
    accept_length: float | None
    accept_rate: float | None
    cuda_graph: bool | None
    tokens_per_s: float | None
    follows_prefill: bool = False
    """Whether a prefill of the same rank lies between this line and the one before."""
    excluded: str = ""
    """Why the rate of this line is left out of the median."""

    def to_json(self) -> dict[str, Any]:
        """Return the record of ``import --json``."""
        return {
            "type": "decode",
            "time": self.time,
            "rank": self.rank or None,
            "num_running": self.num_running,
            "num_tokens": self.num_tokens,
            "accept_length": self.accept_length,
            "accept_rate": self.accept_rate,
            "cuda_graph": self.cuda_graph,
            "gen_throughput_tok_s": self.tokens_per_s,
            **({"excluded": self.excluded} if self.excluded else {}),
        }


@dataclass(slots=True)
class PrefillLine:
    """One prefill line of SGLang; only its place among the decode lines matters."""

    rank: str


def batch_line(line: str, unread: Unread | None = None) -> DecodeLine | PrefillLine | None:
    """Read a batch line of SGLang 0.4.1 to 0.5.14; None for any other line. Fields that are no numbers go to ``unread``."""
    match = _BATCH.search(line)
    if match is None:
        return None
    rank = _RANK.match(line)
    name = rank.group(1).strip() if rank else ""
    if match["phase"] == "Prefill":
        return PrefillLine(rank=name)
    fields = {key.strip().lower(): value for key, value in _FIELD.findall(match["fields"])}
    stamp = _STAMP.match(line)
    notes = unread if unread is not None else Unread()

    def read(*names: str) -> float | None:
        name = next((n for n in names if n in fields), names[0])
        return notes.number(name, fields.get(name))

    running, tokens = read("#running-req"), read("#token", "#full token")
    return DecodeLine(
        time=stamp.group(1) if stamp else None,
        rank=name,
        num_running=int(running) if running is not None else None,
        num_tokens=int(tokens) if tokens is not None else None,
        accept_length=read("accept len", "accept length"),
        accept_rate=read("accept rate"),
        cuda_graph=_flag(fields.get("cuda graph")),
        tokens_per_s=read("gen throughput (token/s)"),
    )


def event(line: str, unread: Unread) -> dict[str, Any] | None:
    """Read any other line that says something about the run; None for the rest. What is no number goes to ``unread``."""
    if match := _RETRACTION.search(line):
        return {"type": "retraction", "num_retracted": int(match[1])}
    if match := _CUSTOM_OFF.search(line):
        rank = _RANK.match(line)
        return {
            "type": "custom_all_reduce",
            "enabled": False,
            "rank": rank.group(1).strip() if rank else None,
            "reason": match[1].strip(),
        }
    if match := _VLLM_SPEC.search(line):
        return _speculation(match[1], unread)
    if match := _VLLM_THROUGHPUT.search(line):
        running = int(match[2]) if match[2] else None
        rate = unread.number("Avg generation throughput", match[1])
        return {"type": "throughput", "gen_throughput_tok_s": rate, "num_running": running}
    if _ARGS.search(line):
        return {"type": "server_args", **{key: _value(value) for key, value in _ARG.findall(line)}}
    return {"type": "server_ready"} if _READY.search(line) else None


def _speculation(text: str, unread: Unread) -> dict[str, Any]:
    """vLLM: keys in any order and spelling (``Avg Draft acceptance rate``, ``Mean acceptance length``)."""
    head, _, tail = text.partition("Per-position acceptance rate:")
    positions = re.match(r"\s*((?:[\d.]+(?:,\s*|$|\s))+)", tail)
    rates = [float(r) for r in re.findall(r"\d+\.\d+|\d+", positions[1])] if positions else []
    everything = head + tail

    def found(name: str) -> float | None:
        match = re.search(name + r":\s*([^\s,%]+)", everything, re.IGNORECASE)
        return unread.number(name, match[1].rstrip(".")) if match else None

    rate = found("acceptance rate")
    if rate is not None and re.search(r"acceptance rate:\s*[\d.]+\s*%", everything, re.IGNORECASE):
        rate /= 100
    accepted, drafted = found("Accepted"), found("Drafted")
    return {
        "type": "speculation",
        "accept_length": found("Mean acceptance length"),
        "accept_rate": rate,
        "num_accepted": int(accepted) if accepted is not None else None,
        "num_drafted": int(drafted) if drafted is not None else None,
        "num_positions": len(rates) or None,
        "per_position_rate": rates,
    }


def _flag(text: str | None) -> bool | None:
    return {"true": True, "false": False}.get(text.strip().lower()) if text else None


def _value(text: str) -> int | bool | str | None:
    text = text.strip().strip("'\"")
    if text in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[text]
    return int(text) if text.isdigit() else text
