"""A load that holds its batch: as many streams as the batch size, begun together, measured while all of them decode."""

import statistics
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nccltune.validation.client import Client, Mark, ServerError, Stream


@dataclass(frozen=True, slots=True)
class Held:
    """What one load showed in the window in which every request was decoding."""

    step_ms: float
    tokens_per_s: float
    window_s: float
    share: float
    """Window of the whole time from the first token to the last."""
    num_tokens: int
    num_verifies: int
    context_tokens: float
    """Prompt and half of the output, mean over the requests."""


def hold(client: Client, prompts: Sequence[dict[str, Any]], num_tokens: int, stall_s: float) -> list[Stream]:
    """Send all prompts at once and return their streams; raises the first ServerError, after every request has ended."""
    gate = threading.Barrier(len(prompts))
    results: list[Stream | Exception] = [RuntimeError("not started")] * len(prompts)

    def one(index: int, prompt: dict[str, Any]) -> None:
        try:
            gate.wait(timeout=30)
            results[index] = client.generate(prompt, num_tokens, stall_s)
        except Exception as error:  # kept for the caller: a thread must not lose it
            results[index] = error

    threads = [threading.Thread(target=one, args=item, daemon=True) for item in enumerate(prompts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    streams = [result for result in results if isinstance(result, Stream)]
    errors = [result for result in results if isinstance(result, Exception)]
    if errors:
        raise errors[0]
    return streams


def measure(streams: Sequence[Stream], *, drafted: bool) -> Held:
    """Look at the window in which all requests decode; raises ServerError where there is none."""
    start = max(s.marks[0].time_s for s in streams)
    end = min(s.marks[-1].time_s for s in streams)
    whole = max(s.marks[-1].time_s for s in streams) - min(s.marks[0].time_s for s in streams)
    inside = [[m for m in s.marks if start <= m.time_s <= end] for s in streams]
    steps = [found for marks, s in zip(inside, streams, strict=True) if (found := _steps(marks, s, drafted)) is not None]  # fmt: skip
    if end <= start or not steps:
        raise ServerError(
            "request_failed",
            f"{len(streams)} requests never decoded together: the server did not take them as one batch",
        )
    tokens = sum(marks[-1].num_tokens - marks[0].num_tokens for marks in inside if marks)
    return Held(
        step_ms=statistics.median(steps), tokens_per_s=tokens / (end - start), window_s=end - start, share=(end - start) / whole if whole > 0 else 1.0,
        num_tokens=sum(s.marks[-1].num_tokens for s in streams), num_verifies=sum(_verifies(s) for s in streams),
        context_tokens=statistics.mean(_prompt_tokens(s) + s.marks[-1].num_tokens / 2 for s in streams),
    )  # fmt: skip


def _steps(marks: Sequence[Mark], stream: Stream, drafted: bool) -> float | None:
    """Milliseconds a step of one request: by its tokens in plain decode, by its verifies (or chunks) otherwise."""
    if len(marks) < 2:
        return None
    duration = marks[-1].time_s - marks[0].time_s
    count = _verifies_between(marks, stream) if drafted else marks[-1].num_tokens - marks[0].num_tokens
    return 1e3 * duration / count if count > 0 else None


def _verifies_between(marks: Sequence[Mark], stream: Stream) -> int:
    """Verifies from the first mark to the last; 0 where that cannot be told."""
    if any(m.num_verifies for m in stream.marks[:-1]):
        return marks[-1].num_verifies - marks[0].num_verifies
    # The counter came with the last chunk only. The first chunk is the prefill's token, before any verify.
    total = _verifies(stream)
    if len(marks) == len(stream.marks):
        return total
    # In a part of the stream every chunk is a verify, where their numbers agree.
    return len(marks) - 1 if total and abs(total - (len(stream.marks) - 1)) <= 1 else 0


def _verifies(stream: Stream) -> int:
    value = stream.meta.get("spec_verify_ct")
    return int(value) if isinstance(value, int | float) else 0


def _prompt_tokens(stream: Stream) -> float:
    value = stream.meta.get("prompt_tokens")
    return float(value) if isinstance(value, int | float) else 0.0
