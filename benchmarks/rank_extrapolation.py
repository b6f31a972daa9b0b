"""How far runs on fewer ranks predict a run on more: every setting that all of them have, size by size; measures nothing itself.

    python benchmarks/rank_extrapolation.py RUN RUN ... --target RUN [--settings NAME,NAME] [--links pcie]

The runs are finished scans of one machine on different rank counts. Each curve of --target is predicted from the others by
nccltune.costmodel.ranks, which has no constant fitted to them, and compared with what was measured.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from nccltune import registry
from nccltune.costmodel.comm import fit_comm
from nccltune.costmodel.curve import CommCurve
from nccltune.costmodel.ranks import extrapolate_ranks
from nccltune.costmodel.run_fit import fit_run
from nccltune.store import Run
from nccltune.units import format_size, format_us

COVERAGE_TARGET = 80.0


def curves(run: Run, links: str) -> dict[str, CommCurve]:
    """Measured curves of a run by setting name."""
    return dict(fit_comm(fit_run(run), run.manifest.num_ranks, links).curves)


def main(argv: list[str] | None = None) -> int:
    """Print one row per setting and size; exit 1 where the intervals hold too few."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--settings", help="names, by comma [default: all that every run has]")
    parser.add_argument("--links", choices=("nvlink", "pcie"), help="[default: those of the target's machine]")
    asked = parser.parse_args(argv)
    truth, known = Run.load(asked.target), [Run.load(path) for path in asked.runs]
    manifest = truth.manifest
    links = asked.links or (manifest.machine.topology and registry.load_topology(manifest.machine.topology).links.kind)
    if not links:
        parser.error("the target does not say what machine it is of: give --links")
    nvls = manifest.base_env.get("NCCL_NVLS_ENABLE") != "0"
    tables, measured = [curves(run, links) for run in known], curves(truth, links)
    names = asked.settings.split(",") if asked.settings else [n for n in measured if all(n in table for table in tables)]  # fmt: skip
    counts = ", ".join(str(run.manifest.num_ranks) for run in known)
    print(f"{manifest.num_ranks} ranks from {counts}\nsetting, size: predicted (90% interval), measured, error")
    errors, inside = [], []
    for name in names:
        found = extrapolate_ranks([table[name] for table in tables], manifest.num_ranks, links, nvls=nvls)
        for size, time in zip(measured[name].size_bytes, measured[name].time_us, strict=True):
            at = found.at(np.array([size]))
            value, low, high = (float(x[0]) for x in (at.value, at.low, at.high))
            errors.append(100 * (value / time - 1))
            inside.append(low <= time <= high)
            print(f"{name}, {format_size(int(size))}: {format_us(value)} ({format_us(low)} to {format_us(high)}), {format_us(float(time))}, {errors[-1]:+.0f}%{'' if inside[-1] else ' outside'}")  # fmt: skip
    if not errors:
        print("no setting is in all of the runs", file=sys.stderr)
        return 2
    held = 100 * float(np.mean(inside))
    print(f"{len(errors)} points: median error {np.median(np.abs(errors)):.1f}%, worst {max(errors, key=abs):+.0f}%, 90% intervals hold {held:.0f}% (target {COVERAGE_TARGET:.0f})")  # fmt: skip
    return 0 if held >= COVERAGE_TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
