"""A session and a run without processes and files: what a walk sees, with times from a function."""

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from nccltune.bench.effective import Resolution
from nccltune.bench.sampling import Samples
from nccltune.plan import Plan, make_plan
from nccltune.schemas.setting import Setting

NUM_SAMPLES = 20


class MemoryRun:
    """Keeps what a run folder would hold."""

    def __init__(self) -> None:
        self.lines: list[Any] = []
        self.manifest = SimpleNamespace(options={}, notes=[])

    def all_measurements(self) -> list[Any]:
        """Later records of a case win."""
        return list({m.case_id: m for m in self.lines}.values())

    measurements = all_measurements

    def append(self, measurements: list[Any]) -> None:
        """Keep finished cases."""
        self.lines += measurements

    def update(self, **fields: Any) -> None:
        """Change the manifest."""
        vars(self.manifest).update(fields)


@dataclass
class FakeSession:
    """``time_us(setting_id, size_bytes)`` is the truth; ``on(op, setting_id, size_bytes)`` may raise RankFailure."""

    time_us: Any
    on: Any = lambda *_: None
    sampling_noise: float = 0.01
    launch_noise: float = 0.0
    seed: int = 0
    resolutions: dict[str, Resolution] = field(default_factory=dict)
    wrong: set[tuple[str, int]] = field(default_factory=set)
    faults: dict[str, str] = field(default_factory=lambda: {"all_gather": "", "reduce_scatter": "", "broadcast": ""})
    calls: list[tuple[str, str]] = field(default_factory=list)
    """(what, setting id) in order."""

    def __post_init__(self) -> None:
        self.options = SimpleNamespace(timeout_s=1.0)
        self.devices: tuple[int, ...] = ()
        self.is_running = False
        self._keys = itertools.count(1)
        self._rng = np.random.default_rng(self.seed)

    def opened(self) -> set[str]:
        """Ids of the settings that a communicator was opened for."""
        return {setting_id for what, setting_id in self.calls if what == "open"}

    def needs_restart(self, library_env: dict[str, str]) -> bool:
        """There is room for every copy."""
        return False

    def open(
        self, env: dict[str, str], library_env: dict[str, str], size_bytes: list[int], *, quiet: bool = False
    ) -> Any:
        """Open a communicator; the launch decides on its share of the noise."""
        setting_id = Setting.make(env).id
        self.is_running = True
        self._call("open", setting_id, None)
        factor = 1 + self.launch_noise * float(self._rng.standard_normal())
        resolution = self.resolutions.get(setting_id, Resolution())
        return SimpleNamespace(key=next(self._keys), env=env, opened=setting_id, factor=factor, resolution=resolution)

    def check(self, comm: Any, size_bytes: int, seeds: list[int]) -> tuple[int, int]:
        """Wrong elements where the test says so."""
        self._call("check", comm.opened, size_bytes)
        return int((comm.opened, size_bytes) in self.wrong), size_bytes // 2 * len(seeds)

    def measure(
        self, comm: Any, size_bytes: int, timing: str, num_per_replay: int, weight_bytes: int, rule: Any
    ) -> Samples:
        """Samples around the truth."""
        self._call("measure", comm.opened, size_bytes)
        noise = 1 + self.sampling_noise * self._rng.standard_normal(NUM_SAMPLES)
        return Samples(self.time_us(comm.opened, size_bytes) * comm.factor * noise, None, "max_replays")

    def others(self, comm: Any, size_bytes: int) -> dict[str, str]:
        """Faults of the other collectives."""
        self._call("others", comm.opened, size_bytes)
        return self.faults

    def close(self, comm: Any, *, abort: bool = False) -> None:
        """Leave a communicator."""
        self._call("abort" if abort else "close", comm.opened, None)

    def stop(self) -> None:
        """End the ranks."""
        self.forget()

    def forget(self) -> None:
        """The ranks are gone."""
        self.calls.append(("forget", ""))
        self.is_running = False

    def cleanup(self) -> None:
        """End the walk."""
        self.stop()

    def _call(self, what: str, setting_id: str, size_bytes: int | None) -> None:
        self.calls.append((what, setting_id))
        self.on(what, setting_id, size_bytes)


def fake_plan(
    grid: Any, sizes: list[int], *, backend: str = "nccl", timings: tuple[str, ...] = ("in-forward",)
) -> Plan:
    """A plan over an empty base, so that a setting's variables are all that a session sees."""
    return make_plan(
        grid, size_bytes=sizes, timings=list(timings), num_ranks=2, dtype="bfloat16", base="nccl", backend=backend
    )
