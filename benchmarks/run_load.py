"""How long a large run takes to load, and how much memory: 100,000 measurements with 20 samples each.

    python benchmarks/run_load.py

The run is written by the store itself, so its lines are those of a scan; every fourth case shares another's samples or
failed, as on a real grid. Each load happens in a process of its own, which prints its peak memory; the best of three counts.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from nccltune import stats
from nccltune.bench import records
from nccltune.schemas.machine import Machine
from nccltune.schemas.measurement import Case, Choice, Failure, Measurement
from nccltune.schemas.run import Manifest
from nccltune.schemas.setting import BASE, Setting
from nccltune.store import Run

NUM_MEASUREMENTS, NUM_SAMPLES = 100_000, 20
TARGET_S, TARGET_BYTES = 3.0, 2 << 30
SIZES = [14336 * n for n in range(1, 13)]


def write(path: Path, num: int = NUM_MEASUREMENTS) -> None:
    """Write a synthetic run."""
    run = Run.create(path, _manifest())
    rng = np.random.default_rng(0)
    pool = [10 + rng.gamma(2.0, 0.1, NUM_SAMPLES) for _ in range(100)]
    shapes = [
        ([round(float(x), 4) for x in s], {k: round(v, 5) for k, v in stats.summarize(s).to_dict().items()})
        for s in pool
    ]
    made: list[Measurement] = []
    for number in range(num):
        setting = BASE if number < len(SIZES) else _setting(number // len(SIZES))
        case = Case(
            setting=setting, size_bytes=SIZES[number % len(SIZES)], timing="in-forward", num_ranks=8, dtype="bfloat16", base="sglang",
            backend="nccl",
        )  # fmt: skip
        made.append(_measurement(case, number, *shapes[number % len(shapes)]))
    run.append(made)


def _setting(number: int) -> Setting:
    env = {"NCCL_PROTO": ("LL", "LL128", "Simple")[number % 3], "NCCL_ALGO": ("Ring", "Tree")[number % 2]}
    return Setting.make({**env, "NCCL_BUFFSIZE": str(4096 * number)})


def _measurement(case: Case, number: int, samples: list[float], summary: dict[str, float]) -> Measurement:
    if number % 16 == 15:
        return records.record(
            case, "timeout", error=Failure(kind="hang", message="rank 0, 1 did not answer", rank=0), order=number
        )
    choice = Choice(algo="RING", proto="LL", num_channels=16, num_threads=512, kernel="ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
                    transports={"P2P": 16}, source="nccl-log")  # fmt: skip
    return records.record(
        case, "ok", samples_us=samples, stats=summary, choice=choice, in_force=True, nccl_model_us=9.5, compute_us=36.2, num_wrong=0, num_checked=14336, num_per_replay=24, stop_reason="interval",
        order=number, seconds=0.09, same_as="0123456789abcdef" if number % 4 == 3 else None,
    )  # fmt: skip


def _manifest() -> Manifest:
    machine = Machine(
        hostname_hash="0badc0de", os="Linux", kernel="6", python="3.11", cpu_model="cpu", num_cpus=2, memory_bytes=1
    )
    return Manifest(
        nccltune_version="0", created_at="2026-11-01T00:00:00+00:00", command=["run_load.py"], run_id="run-load", backend="nccl", base="sglang",
        base_env={}, num_ranks=8, dtype="bfloat16", model=None, tokens=[], size_bytes=SIZES, timings=["in-forward"], settings=[BASE],
        plan_id="0", machine=machine, status="complete",
    )  # fmt: skip


def load(path: Path) -> None:
    """Load the run and print its number of measurements, seconds and peak bytes."""
    start = time.perf_counter()
    found = Run.load(path).measurements()
    wall = time.perf_counter() - start
    print(len(found), wall, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def main() -> int:
    """Write a run, load it in fresh processes; 1 when a target is missed."""
    if sys.argv[1:2] == ["--write"]:
        write(Path(sys.argv[2]))
        return 0
    if sys.argv[1:2] == ["--load"]:
        load(Path(sys.argv[2]))
        return 0
    with tempfile.TemporaryDirectory(prefix="run-load-") as folder:
        run = Path(folder) / "run"
        subprocess.run([sys.executable, __file__, "--write", str(run)], check=True)
        loads = [
            subprocess.run([sys.executable, __file__, "--load", str(run)], check=True, capture_output=True, text=True)
            for _ in range(3)
        ]
        size = (run / "measurements.jsonl").stat().st_size
    results = [tuple(map(float, done.stdout.split())) for done in loads]
    num, wall, peak = results[0][0], min(r[1] for r in results), max(r[2] for r in results)
    print(
        f"{num:.0f} measurements, {size / 2**20:.0f} MiB: best of 3 {wall:.2f} s (target {TARGET_S:.0f} s), peak {peak / 2**30:.2f} GiB (target 2 GiB)"
    )
    return 0 if num == NUM_MEASUREMENTS and wall < TARGET_S and peak < TARGET_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
