"""What an engine's accept rate means. SGLang printed two different ones over time, so rates are kept apart from lengths."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

_HALF_DIGIT = 0.005
_MAX_DRAFT_TOKENS = 64

ACCEPTED_OF_DRAFTED = "(accept_length - 1) / drafted tokens"
EMITTED_OF_VERIFIED = "accept_length / verified tokens"


@dataclass(slots=True)
class AcceptRate:
    """Accept rates of a log, with what they mean; values above one cannot be rates and are left out."""

    values: list[float] = field(default_factory=list)
    excluded: list[float] = field(default_factory=list)
    definition: str = "unknown"

    def to_json(self) -> dict[str, Any] | None:
        """Return the document of ``import --json``; None where no printed rate can be one."""
        if not self.values:
            return None
        return {
            "values": self.values,
            "mean": sum(self.values) / len(self.values),
            "definition": self.definition,
            "excluded": self.excluded,
        }


@lru_cache(maxsize=4096)
def definition(accept_length: float, rate: float, num_draft_tokens: int | None = None) -> str:
    """Tell what one (length, rate) pair means, as far as its two printed digits allow.

    2.71 and 0.57: 1.71 / 3 = 0.570, while 2.71 / 0.57 = 4.75 is no count of tokens. 2.76 and 0.69: 2.76 / 4 = 0.690.
    ``num_draft_tokens`` is the width of a verify, root included, where the log names it.
    """
    widths = [num_draft_tokens] if num_draft_tokens else list(range(2, _MAX_DRAFT_TOKENS + 1))
    accepted = any(_fits(accept_length - 1, width - 1, rate) for width in widths if accept_length <= width)
    emitted = any(_fits(accept_length, width, rate) for width in widths if accept_length <= width)
    if accepted == emitted:
        return "ambiguous" if accepted else "unknown"
    return ACCEPTED_OF_DRAFTED if accepted else EMITTED_OF_VERIFIED


def summarize_rates(pairs: list[tuple[float | None, float]], num_draft_tokens: int | None = None) -> AcceptRate:
    """Gather (accept length, rate) pairs: one definition only if every pair that tells agrees."""
    result = AcceptRate()
    told: set[str] = set()
    possible: set[str] = {ACCEPTED_OF_DRAFTED, EMITTED_OF_VERIFIED}
    for length, rate in pairs:
        if not 0 <= rate <= 1:
            result.excluded.append(rate)
            continue
        result.values.append(rate)
        if length is not None:
            told.add(definition(length, rate, num_draft_tokens))
    sure = told & possible
    result.definition = sure.pop() if len(sure) == 1 else "mixed" if sure else (told or {"unknown"}).pop()
    return result


def num_drafts(pairs: list[tuple[float | None, float]]) -> int | None:
    """Tell the drafts per verify from (accept length, rate) pairs, if all of them fit one number only.

    2.20 and 0.55, 1.93 and 0.48: 4 verified tokens, so 3 drafts; 2.71 and 0.57: 3 drafts. A server that changes its
    number of drafts fits none.
    """
    possible: set[int] | None = None
    for length, rate in pairs:
        if length is None or length < 1 or not 0 < rate <= 1:
            continue
        mine = {
            width - 1
            for width in range(2, _MAX_DRAFT_TOKENS + 1)
            if length <= width and (_fits(length - 1, width - 1, rate) or _fits(length, width, rate))
        }
        possible = mine if possible is None else possible & mine
    return possible.pop() if possible and len(possible) == 1 else None


def _fits(emitted: float, width: int, rate: float) -> bool:
    """Whether emitted / width, both known to two decimals, can print as ``rate``."""
    return width > 0 and abs(emitted / width - rate) <= _HALF_DIGIT + _HALF_DIGIT / width + 1e-9
