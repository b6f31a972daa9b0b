"""How fast and how repeatable a scan is, from finished runs; measures nothing itself.

    python benchmarks/scan_speed.py FULL [--race RUN [--duel RUN ...]] [--again RUN RUN] [--nccl-tests RUN [--own RUN]]
    python benchmarks/scan_speed.py FULL --race RUN --print-duel

FULL: a full scan. --race: the same grid with --search race. --duel: scans of just the settings that --print-duel names, the
race's choice and the full scan's best, one launch of each a run. The best of hundreds of single launches is partly luck, so the
regret is told by launches that chose nothing. --again: two scans of one grid. --nccl-tests: a scan with
--backend nccl-tests, compared with the back-to-back times of --own (default FULL).
"""

import argparse
import datetime
import sys
from pathlib import Path

import numpy as np

from nccltune.schemas.measurement import Measurement
from nccltune.store import Run

# all_reduce_perf is started once to read NCCL's choice and three times to time (bench/nccl_tests_program.py).
NCCL_TESTS_CALLS = 4
Key = tuple[str, int]


def main(argv: list[str] | None = None) -> int:
    """Print one table; exit 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("full", type=Path)
    parser.add_argument("--race", type=Path)
    parser.add_argument("--duel", type=Path, nargs="+", default=[])
    parser.add_argument("--print-duel", action="store_true")
    parser.add_argument("--again", type=Path, nargs=2)
    parser.add_argument("--nccl-tests", type=Path)
    parser.add_argument("--own", type=Path)
    options = parser.parse_args(argv)
    full = Run.load(options.full)
    if options.print_duel:
        for name in dict.fromkeys(contestants(full, Run.load(options.race))):
            print(next(s for s in full.manifest.settings if s.name == name).id.replace("; ", ";"))
        return 0
    rows = speed(full)
    if options.race:
        rows += race(full, Run.load(options.race), [Run.load(path) for path in options.duel])
    if options.again:
        rows += again(*(Run.load(path) for path in options.again))
    if options.nccl_tests:
        rows += against_nccl_tests(full, Run.load(options.own or options.full), Run.load(options.nccl_tests))
    for name, value, target, met in rows:
        print(f"{name:62} {value:>26}   {target:22} {'' if met is None else 'met' if met else 'MISSED'}")
    return 0 if all(met is not False for *_, met in rows) else 1


Row = tuple[str, str, str, bool | None]


def wall_s(run: Run) -> float:
    """Seconds from the manifest's creation to the end of the walk, start of the ranks included."""
    assert run.manifest.finished_at is not None
    begin, end = (datetime.datetime.fromisoformat(t) for t in (run.manifest.created_at, run.manifest.finished_at))
    return (end - begin).total_seconds()


def floor_s(measurements: list[Measurement]) -> float:
    """Seconds the GPU was replaying timed graphs: what no harness with these replays can go below."""
    total = 0.0
    for m in measurements:
        if m.status == "ok" and m.same_as is None:
            # in-forward replays the forward with and without all-reduces: twice the compute
            compute = 2 * (m.compute_us or 0.0)
            total += sum(m.samples_us) * m.num_per_replay + compute * m.num_per_replay * len(m.samples_us)
    return total / 1e6


def speed(run: Run) -> list[Row]:
    """How long the scan took, per pair, and where the time went."""
    m = run.manifest
    measurements = run.measurements()
    cases = [x for x in measurements if not x.repeat]
    own = [x for x in cases if x.status == "ok" and x.same_as is None]
    shared = [x for x in cases if x.same_as is not None]
    wall, floor = wall_s(run), floor_s(measurements)
    measuring = sum(x.seconds for x in own)
    return [
        ("grid", f"{len(m.settings)} settings x {len(m.size_bytes)} sizes", ">= 300 x 12", None),
        ("wall time, start included", f"{wall:.0f} s", "< 360 s", wall < 360),
        ("per (setting, size)", f"{1e3 * wall / len(cases):.1f} ms", "", None),
        ("measured / shared by the same choice", f"{len(own)} / {len(shared)}", "", None),
        ("time inside cases (check, capture, replay)", f"{measuring:.0f} s", "", None),
        ("floor: GPU time of the timed replays", f"{floor:.0f} s ({100 * floor / wall:.0f}% of wall)", "", None),
    ]


def decode_scores(run: Run, sizes: list[int]) -> dict[str, float]:
    """Mean over the decode sizes of a setting's time relative to the base, for settings that have them all."""
    found = {
        (x.setting.name, x.size_bytes): x.median_us for x in run.measurements() if x.status == "ok" and not x.repeat
    }
    names = {name for name, _ in found if all((name, size) in found for size in sizes)}
    return {name: float(np.mean([found[name, s] / found["base", s] for s in sizes])) for name in names}


def contestants(full: Run, raced: Run) -> tuple[str, str]:
    """Names of the race's choice and of the full scan's best, at the sizes that the race decides by."""
    assert full.manifest.plan_id == raced.manifest.plan_id, "the two runs measure different plans"
    sizes = raced.manifest.options["decode_sizes"]
    scored, tried = decode_scores(full, sizes), decode_scores(raced, sizes)
    return min(tried, key=lambda n: tried[n]), min(scored, key=lambda n: scored[n])


def race(full: Run, raced: Run, duels: list[Run]) -> list[Row]:
    """Time and regret of the race: by launches of their own where there are some, else by the full scan itself."""
    sizes = raced.manifest.options["decode_sizes"]
    chosen, best = contestants(full, raced)
    scored, tried = decode_scores(full, sizes), decode_scores(raced, sizes)
    regret = 100 * (scored[chosen] / scored[best] - 1)
    share = wall_s(raced) / wall_s(full)
    rows: list[Row] = [
        ("race: wall time, share of the full scan", f"{wall_s(raced):.0f} s, {100 * share:.0f}%", "<= 20%", share <= 0.20),
        ("race: settings opened", f"{len(tried)} of {len(raced.manifest.settings)}", "", None),
        (f"race: chose {chosen}; full scan's best {best}: behind by", f"{regret:.2f}%", "" if duels else "<= 1%", None if duels else regret <= 1.0),
    ]  # fmt: skip
    if duels and chosen != best:
        again = np.array([100 * (s[chosen] / s[best] - 1) for s in (decode_scores(run, sizes) for run in duels)])
        half = 1.645 * float(again.std(ddof=1)) / np.sqrt(again.size) if again.size > 1 else float("nan")
        text = f"{again.mean():+.2f}% +- {half:.2f}% ({again.size})"
        rows.append(("  behind in launches of their own (90% interval, launches)", text, "<= 1%", bool(again.mean() <= 1.0)))  # fmt: skip
    return rows


def differences(a: Run, b: Run, timing: str, *, once: bool = True) -> dict[Key, float]:
    """Relative difference of the medians of two runs; ``once``: settings that share a measurement count once."""
    one, two = (
        {
            (x.setting.id, x.size_bytes): x.median_us
            for x in run.measurements()
            if x.status == "ok" and not x.repeat and x.timing == timing and not (once and x.same_as)
        }
        for run in (a, b)
    )
    return {key: two[key] / one[key] - 1 for key in one.keys() & two.keys()}


def again(a: Run, b: Run) -> list[Row]:
    """How far two scans of one grid agree."""
    rows: list[Row] = []
    for timing in a.manifest.timings:
        d = np.abs(list(differences(a, b, timing).values()))
        within = 100 * float(np.mean(d <= 0.02))
        value = f"{within:.0f}% of {d.size} (median {100 * np.median(d):.1f}%)"
        rows.append((f"two scans, {timing}: within 2%", value, ">= 95%", within >= 95))
    return rows


def against_nccl_tests(full: Run, own: Run, tests: Run) -> list[Row]:
    """Agreement of the back-to-back medians, and the speed against one process per setting."""
    d = np.abs(list(differences(tests, own, "back-to-back", once=False).values()))
    within = 100 * float(np.mean(d <= 0.03))
    cases = [x for x in full.measurements() if not x.repeat]
    theirs = sum(x.seconds for x in tests.measurements()) / NCCL_TESTS_CALLS / len(tests.measurements())
    ratio = theirs / (wall_s(full) / len(cases))
    return [
        (
            "nccl-tests -G, back-to-back medians within 3%",
            f"{within:.0f}% of {d.size} pairs",
            ">= 95% of >= 100",
            within >= 95 and d.size >= 100,
        ),
        ("  median difference, worst", f"{100 * np.median(d):.2f}%, {100 * d.max():.1f}%", "", None),
        ("nccl-tests, one process per setting, per (setting, size)", f"{1e3 * theirs:.0f} ms", "", None),
        ("  faster than that by", f"{ratio:.1f}x", ">= 5x", ratio >= 5),
    ]


if __name__ == "__main__":
    sys.exit(main())
