"""How many replays a case gets: chunks until the median is known well enough, or the limit. Slowest rank decides."""

import time
from dataclasses import dataclass

import numpy as np

from nccltune import stats
from nccltune.bench.group import RankGroup
from nccltune.stats import Floats


@dataclass(frozen=True, slots=True)
class StopRule:
    """When to stop replaying one case."""

    min_replays: int = 20
    max_replays: int = 100
    chunk: int = 20
    relative_width: float = 0.01
    """Half-width of the 90% interval of the median, relative to it."""
    absolute_us: float = 0.05
    """Below this half-width more replays change nothing that matters: CUDA events tick at about half a microsecond
    per graph, a small fraction of this per all-reduce."""
    max_seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Samples:
    """Per all-reduce microseconds, one per replay; the compute beside them for in-forward timing."""

    per_allreduce_us: Floats
    compute_us: float | None
    stop_reason: str


def sample(group: RankGroup, num_per_replay: int, rule: StopRule, timeout_s: float) -> Samples:
    """Replay in chunks until ``rule`` is met."""
    start = time.monotonic()
    chunks: list[Floats] = []
    computes: list[Floats] = []
    while True:
        answers = group.call("replay", timeout_s, num=rule.chunk)
        # A forward waits for its slowest rank at every all-reduce, so the slowest rank of each replay is the sample.
        full = np.max([answer["full_us"] for answer in answers], axis=0)
        if answers[0]["compute_us"]:
            compute = np.max([answer["compute_us"] for answer in answers], axis=0)
            full = full - compute
            computes.append(compute)
        chunks.append(full / num_per_replay)
        samples = np.concatenate(chunks)
        reason = _stop(samples, rule, time.monotonic() - start)
        if reason:
            compute_us = float(np.median(np.concatenate(computes))) / num_per_replay if computes else None
            return Samples(samples, compute_us, reason)


def _stop(samples: Floats, rule: StopRule, seconds: float) -> str:
    if samples.size >= rule.max_replays:
        return "max_replays"
    if seconds >= rule.max_seconds:
        return "time"
    if samples.size >= rule.min_replays:
        low, high = stats.median_interval(samples)
        half = (high - low) / 2
        if half <= max(rule.relative_width * float(np.median(samples)), rule.absolute_us):
            return "interval"
    return ""


def allreduces_per_replay(timing: str, model_us: float | None, *, on_gpu: bool = True) -> int:
    """How many all-reduces one replay holds: enough to dwarf the event's resolution, few enough for large messages."""
    if not on_gpu:  # gloo takes a millisecond or so for one
        return 8
    expected = model_us or 20.0
    if timing == "in-forward":
        return int(np.clip(1200.0 / (expected + 20.0), 6, 24))
    return int(np.clip(800.0 / expected, 4, 50))
