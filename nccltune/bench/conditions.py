"""Under what conditions a walk measured: GPU clocks, temperature, power and throttling before and after, and drift."""

from typing import Any

from nccltune.bench.drift import MAX_DRIFT, Drift
from nccltune.probe import gpu_state
from nccltune.schemas.machine import GpuRecord
from nccltune.store import Run

_STATE = ("index", "sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w", "throttle_reasons")
_MAX_WINDOWS = 6


def state(devices: tuple[int, ...]) -> list[GpuRecord]:
    """The GPUs in use now, asked for by CUDA's numbers; empty without a driver."""
    return gpu_state(devices) if devices else []


def span(before: list[GpuRecord], after: list[GpuRecord], first_order: int, next_order: int) -> dict[str, Any]:
    """What the manifest keeps of one walk: its cases (by ``order``) and the GPUs at both ends."""
    return {
        "first_order": first_order,
        "next_order": next_order,
        "before": [record.model_dump(include=set(_STATE)) for record in before],
        "after": [record.model_dump(include=set(_STATE)) for record in after],
    }


def keep_notes(run: Run, found: list[str]) -> list[str]:
    """Add notes to a run's manifest and return those that it did not have."""
    new = [note for note in dict.fromkeys(found) if note not in run.manifest.notes]
    if new:
        run.update(notes=[*run.manifest.notes, *new])
    return new


def notes(before: list[GpuRecord], after: list[GpuRecord], drifts: list[Drift]) -> list[str]:
    """What a reader of the run must know: throttled GPUs, and windows in which the base moved."""
    found = []
    for moment, records in (("before", before), ("at the end of", after)):
        slow = [f"GPU {r.index} ({', '.join(r.throttle_reasons)})" for r in records if r.throttle_reasons]
        if slow:
            found.append(f"throttled {moment} the scan: {'; '.join(slow)}")
    if drifts:
        worst = max(drifts, key=lambda d: abs(d.relative))
        ends: dict[int, int] = {}
        for drift in drifts:
            ends[drift.since] = max(drift.order, ends.get(drift.since, 0))
        windows = [f"{since}-{order}" for since, order in ends.items()]
        listed = ", ".join(windows[:_MAX_WINDOWS]) + (", ..." if len(windows) > _MAX_WINDOWS else "")
        found.append(
            f"drift: the base moved by more than {100 * MAX_DRIFT:.0f}% during cases {listed} (field order); the most: {worst.text()}"
        )
    return found
