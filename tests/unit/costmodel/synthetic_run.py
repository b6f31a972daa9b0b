"""Runs with known times, built through the schemas: what a fit must find again is known exactly."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from nccltune import stats
from nccltune.schemas.machine import Machine
from nccltune.schemas.measurement import Case, Choice, Measurement
from nccltune.schemas.run import Manifest
from nccltune.schemas.setting import BASE, Setting
from nccltune.store import Run

TOKENS = [1, 2, 3, 4, 6, 8, 16]
KIMI_BYTES = 14336  # 7168 x 2
SIZES = [t * KIMI_BYTES for t in TOKENS]
LL = Setting.make({"NCCL_PROTO": "LL"})
SIMPLE = Setting.make({"NCCL_PROTO": "Simple"})
MACHINE = Machine(
    hostname_hash="0badc0de", os="Linux", kernel="6", python="3.11", cpu_model="cpu", num_cpus=2, memory_bytes=1
)


def line(alpha_us: float, us_per_byte: float) -> Callable[[int], float]:
    """A setting whose time is exactly alpha + beta x bytes."""
    return lambda size: alpha_us + us_per_byte * size


def measurement(setting: Setting, size: int, median_us: float | None, **fields: Any) -> Measurement:
    """One case: with a median, 101 samples spread evenly within 0.5% of it; without, a failure."""
    timing = fields.pop("timing", "in-forward")
    case = Case(
        setting=setting, size_bytes=size, timing=timing, num_ranks=8, dtype="bfloat16", base="sglang", backend="nccl"
    )
    samples = [] if median_us is None else (median_us * np.linspace(0.995, 1.005, 101)).tolist()
    values: dict[str, Any] = {
        "case_id": case.id, "setting": setting, "size_bytes": size, "count": size // 2, "timing": timing, "num_ranks": 8,
        "dtype": "bfloat16", "base": "sglang", "backend": "nccl", "status": "ok", "in_force": True, "samples_us": samples,
        "stats": stats.summarize(samples).to_dict() if samples else None,
    }  # fmt: skip
    return Measurement.model_validate({**values, **fields})


def curve(
    setting: Setting, time: Callable[[int], float], sizes: Iterable[int] = SIZES, **fields: Any
) -> list[Measurement]:
    """All sizes of one setting."""
    return [measurement(setting, size, time(size), **fields) for size in sizes]


def repeats(medians_us: Iterable[float], size: int = SIZES[0]) -> list[Measurement]:
    """Repetitions of the base by the drift monitor."""
    case_id = measurement(BASE, size, 1.0).case_id
    return [measurement(BASE, size, t, repeat=n, case_id=f"{case_id}-r{n}") for n, t in enumerate(medians_us, 1)]


def choice(algo: str, proto: str, num_channels: int = 4) -> Choice:
    """An effective choice."""
    return Choice(algo=algo, proto=proto, num_channels=num_channels, source="nccl-log")


def make_run(path: Path, measurements: list[Measurement], **fields: Any) -> Run:
    """A finished run folder holding ``measurements``."""
    settings = {m.setting.id: m.setting for m in measurements}
    values: dict[str, Any] = {
        "nccltune_version": "0", "created_at": "2026-11-01T00:00:00+00:00", "command": ["nccltune", "scan"], "run_id": "synthetic",
        "backend": "nccl", "base": "sglang", "base_env": {"NCCL_NVLS_ENABLE": "0"}, "num_ranks": 8, "dtype": "bfloat16", "model": None,
        "tokens": TOKENS, "size_bytes": SIZES, "timings": ["in-forward"], "settings": list(settings.values()) or [BASE],
        "plan_id": "0", "machine": MACHINE, "status": "complete",
    }  # fmt: skip
    run = Run.create(path, Manifest.model_validate({**values, **fields}))
    run.append(measurements)
    return run
