"""Render finished runs as the tables of a report page (Markdown on stdout); measures nothing itself.

python benchmarks/scan_page.py RUN [--nccl-tests RUN] [--settings N]
"""

import argparse
from pathlib import Path

import numpy as np

from nccltune.schemas.measurement import Measurement
from nccltune.store import Run
from nccltune.units import format_size, format_us


def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--nccl-tests", type=Path)
    parser.add_argument(
        "--settings",
        default="base,LL Ring,LL Tree,LL128 Ring,LL128 Tree,Simple Ring,Simple Tree,LL Ring 16ch,LL Ring 1ch,seed",
    )
    options = parser.parse_args(argv)
    run = Run.load(options.run)
    print(facts(run), timings(run, options.settings.split(",")), understated(run), launches(run), sep="\n\n")
    if options.nccl_tests:
        print("\n" + against_nccl_tests(run, Run.load(options.nccl_tests)))


def medians(run: Run, timing: str) -> dict[tuple[str, int], Measurement]:
    """Measured or shared cases of one timing by setting name and size."""
    return {
        (m.setting.name, m.size_bytes): m
        for m in run.measurements()
        if m.timing == timing and m.status == "ok" and not m.repeat
    }


def facts(run: Run) -> str:
    """Machine, versions and command."""
    m = run.manifest
    gpus = ", ".join(f"{g.name}" for g in m.machine.gpus)
    nccl = m.machine.nccl
    lines = [
        f"- run `{m.run_id}`, {m.created_at}: `{' '.join(m.command)}`",
        f"- {gpus}; driver {m.machine.driver_version}; NCCL {nccl.version if nccl else '?'}; torch {m.machine.torch_version}; {m.num_ranks} ranks, {m.dtype}",
        f"- base `{m.base}`: {', '.join(f'{k}={v}' for k, v in m.base_env.items())}",
        f"- {len(m.settings)} settings x {len(m.size_bytes)} sizes; " + "; ".join(m.notes),
    ]
    return "\n".join(lines).rstrip("; ")


def timings(run: Run, names: list[str]) -> str:
    """One row per setting: back to back / in the forward, microseconds."""
    back, inside = medians(run, "back-to-back"), medians(run, "in-forward")
    sizes = run.manifest.size_bytes
    rows = ["| setting | " + " | ".join(format_size(s) for s in sizes) + " |", "|---" * (len(sizes) + 1) + "|"]
    for name in names:
        cells = [_pair(back.get((name, s)), inside.get((name, s))) for s in sizes]
        if any(cell != "-" for cell in cells):
            rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return "Microseconds per all-reduce, back to back / in the forward:\n\n" + "\n".join(rows)


def _pair(back: Measurement | None, inside: Measurement | None) -> str:
    parts = [format_us(m.median_us) if m else "?" for m in (back, inside)]
    return "-" if parts == ["?", "?"] else " / ".join(parts)


def understated(run: Run) -> str:
    """How far back-to-back is below the cost in a forward, over all settings, by size."""
    back, inside = medians(run, "back-to-back"), medians(run, "in-forward")
    rows = ["| size | cases | median ratio in-forward / back-to-back | lowest | highest |", "|---|---|---|---|---|"]
    for size in run.manifest.size_bytes:
        ratios = [
            inside[key].median_us / back[key].median_us
            for key in inside
            if key[1] == size and key in back and back[key].same_as is None
        ]
        if ratios:
            rows.append(
                f"| {format_size(size)} | {len(ratios)} | {np.median(ratios):.2f} | {min(ratios):.2f} | {max(ratios):.2f} |"
            )
    return "\n".join(rows)


def launches(run: Run) -> str:
    """Medians of the base in launches of its own through the run."""
    rows = ["| size | launches of the base through the run, us | spread |", "|---|---|---|"]
    first = medians(run, run.manifest.timings[0])
    for size in run.manifest.size_bytes:
        times = [
            m.median_us
            for m in run.measurements()
            if m.repeat and m.size_bytes == size and m.setting.name == "base" and m.status == "ok"
        ]
        if times:
            times = [first["base", size].median_us, *times]
            rows.append(
                f"| {format_size(size)} | {', '.join(format_us(t) for t in times)} | {100 * (max(times) / min(times) - 1):.1f}% |"
            )
    return "\n".join(rows)


def against_nccl_tests(run: Run, tests: Run) -> str:
    """Back-to-back medians beside nccl-tests, per setting: the largest difference over the sizes."""
    ours = {
        (m.setting.id, m.size_bytes): m
        for m in run.measurements()
        if m.timing == "back-to-back" and m.status == "ok" and not m.repeat
    }
    rows = ["| setting | sizes | median difference | largest | at |", "|---|---|---|---|---|"]
    by_setting: dict[str, list[tuple[float, int]]] = {}
    for m in tests.measurements():
        key = (m.setting.id, m.size_bytes)
        if m.status == "ok" and key in ours:
            by_setting.setdefault(m.setting.name, []).append((ours[key].median_us / m.median_us - 1, m.size_bytes))
    for name, found in by_setting.items():
        worst = max(found, key=lambda pair: abs(pair[0]))
        rows.append(
            f"| {name} | {len(found)} | {100 * np.median([d for d, _ in found]):+.1f}% | {100 * worst[0]:+.1f}% | {format_size(worst[1])} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    main()
