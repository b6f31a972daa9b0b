"""The accept length that an engine's own text tells, for a prediction: mean, drafts per verify, rates by position.

Only lengths and per-position counts are used; a printed rate has two definitions (with and without the bonus token).
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from nccltune.errors import InputError
from nccltune.parse.accept_rate import num_drafts
from nccltune.parse.bounded import read_bounded
from nccltune.parse.engine_log import EngineLog, parse_engine_log

_MAX_BYTES = 512 * 1024 * 1024
_DRAFT_TOKENS = re.compile(r"speculative_num_(draft_tokens|steps)['\"]?[=:]\s*(\d+)")
_DRAFT_GAUGE = re.compile(r"^sglang:spec_num_draft_tokens(?:\{[^}]*\})?\s+(\d+(?:\.0*)?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class AcceptLog:
    """What a text says about acceptance. ``mean`` is an accept length with the bonus token."""

    mean: float
    values: list[float]
    num_drafts: int | None = None
    """Drafts per verify, where the text tells."""
    survival: list[float] | None = None
    """Rates by position, where it prints them (vLLM): survival, weighted by drafted tokens."""
    warnings: list[str] = field(default_factory=list)


def read_accept_log(path: Path) -> AcceptLog:
    """Read accept lengths from a file; raises InputError if it has none."""
    try:
        data = read_bounded(path, _MAX_BYTES)
        if data is None:
            raise InputError(f"{path} is larger than 512 MiB", "", "cut out the part with the decode lines")
        text = data.decode("utf-8-sig", errors="replace")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", "", "check the path") from None
    except OSError as error:
        raise InputError(f"cannot read {path}", str(error), "check the path and its permissions") from error
    return accept_log(text, str(path))


def accept_log(text: str, where: str) -> AcceptLog:
    """Find the accept lengths in an engine's text: SGLang logs, metrics and results, vLLM's SpecDecoding lines."""
    log = parse_engine_log(text)
    good = log.accept_lengths
    if not good:
        decoded = " (it has decode lines, of a server without speculation)" if log.decode_lines else ""
        raise InputError(
            f"{where} has no accept length{decoded}",
            "known: SGLang decode lines and metrics, bench_serving output, vLLM SpecDecoding lines",
            "give a log of a server with speculation on, or --accept-length",
        )
    warnings = [w for w in log.warnings if "accept" in w or w in log.unread.warnings()]
    survival = _survival(log)
    mean, drafts = sum(good) / len(good), _num_drafts(text, log)
    if survival is not None:
        mean, drafts = 1 + sum(survival), len(survival)
    return AcceptLog(mean, good, drafts, survival, warnings)


def _survival(log: EngineLog) -> list[float] | None:
    """Mean of the per-position rates, where every line has equally many."""
    lines = [r for r in log.results if r.get("per_position_rate")]
    widths = {len(r["per_position_rate"]) for r in lines}
    if len(widths) != 1:
        return None
    weights = [float(r.get("num_drafted") or 1) for r in lines]
    columns = zip(*(r["per_position_rate"] for r in lines), strict=True)
    return [sum(v * w for v, w in zip(column, weights, strict=True)) / sum(weights) for column in columns]


def _num_drafts(text: str, log: EngineLog) -> int | None:
    """Drafts per verify from the server's arguments or metrics if they agree on one number, else from its rates.

    Arguments that disagree (steps 3, draft tokens 16) are a tree's: its rates tell no chain either.
    """
    found = {int(n) - 1 if what == "draft_tokens" else int(n) for what, n in _DRAFT_TOKENS.findall(text)}
    found |= {int(float(n)) - 1 for n in _DRAFT_GAUGE.findall(text)}
    found.discard(0)
    if found:
        return found.pop() if len(found) == 1 else None
    pairs: list[tuple[object, object]] = [(line.accept_length, line.accept_rate) for line in log.decode_lines]
    pairs += [(r.get("accept_length"), r.get("accept_rate")) for r in log.results]
    return num_drafts(
        [(float(a), float(b)) for a, b in pairs if isinstance(a, int | float) and isinstance(b, int | float)]
    )
