"""How far all-reduce curves can be trusted beyond their points: other rank counts, other sizes, nothing measured.

    python benchmarks/allreduce_accuracy.py [TABLE.csv] [--library nccl] [--links SYSTEM=nvlink|pcie] [--no-nvls SYSTEM]

TABLE has the columns system,library,version,mode,num_ranks,size_bytes,time_us. Ranks: 8 are predicted from 2 and 4
(or the largest count from the others). Held out: the interval's two constants are chosen on the other systems, by the
rule that chose the shipped ones on all, and scored on this one. Sizes: every inner size is predicted from its neighbours, and the sizes above a cut from those below.
"""

import argparse
import csv
import itertools
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nccltune.costmodel.curve import CommCurve
from nccltune.costmodel.ranks import WIDTHS, Widths, extrapolate_ranks
from nccltune.errors import InputError, NccltuneError
from nccltune.schemas.setting import BASE

COLUMNS = ("system", "library", "version", "mode", "num_ranks", "size_bytes", "time_us")
DEFAULT = Path(__file__).parent / "data" / "allreduce.csv"
# A PCIe 5.0 x16 link carries 64 GB/s one way; what a pair of GPUs moves faster than 1.5 times that is NVLink.
NVLINK_BYTES_PER_S = 96e9
# The choice of constants: the narrowest intervals that hold 90% of the points of every other system.
GRID = [Widths(f, s) for f, s in itertools.product((0.05, 0.08, 0.10, 0.12, 0.15, 0.18, 0.22), (0.25, 0.5, 0.75, 1.0))]
DECODE_BYTES = 1 << 20
TARGET_MEDIAN, TARGET_COVERAGE = 20.0, (80.0, 98.0)

Tables = dict[str, dict[int, CommCurve]]


@dataclass(frozen=True)
class Score:
    """Errors of one prediction against the truth, percent, which points the interval holds, and its log width."""

    error: np.ndarray
    inside: np.ndarray
    width: np.ndarray
    size: np.ndarray

    def line(self) -> str:
        """Median and worst error, coverage, and the median half-width."""
        return (
            f"median {np.median(self.error):5.1f}%  worst {self.error.max():6.1f}%  inside {100 * self.inside.mean():5.1f}%  "
            f"half-width {100 * np.median(self.width):4.0f}%  n {self.error.size}"
        )


def read(path: Path, library: str) -> Tables:
    """Read the curves of one library by system and ranks; a repeated point takes the median."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or [])]
            if missing:
                raise InputError(
                    f"{path} is not an all-reduce table",
                    f"it has no column {', '.join(missing)}",
                    f"columns: {','.join(COLUMNS)}",
                )
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {path}", str(error), "give a CSV file") from error
    found: dict[tuple[str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    kinds = {(row["system"], row["version"], row["mode"]) for row in rows if row["library"] == library}
    several = {system for system, *_ in kinds if sum(kind[0] == system for kind in kinds) > 1}
    for number, row in enumerate(rows, 2):
        if row["library"] != library:
            continue
        try:
            ranks, size, time = int(row["num_ranks"]), int(row["size_bytes"]), float(row["time_us"])
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{path}:{number} is not a row of numbers", str(error), "correct or remove the row"
            ) from error
        if ranks > 1 and size > 0 and np.isfinite(time) and time > 0:
            name = " ".join([row["system"], row["version"], row["mode"]]) if row["system"] in several else row["system"]
            found[name, ranks][size].append(time)
    tables: Tables = defaultdict(dict)
    for (system, ranks), points in sorted(found.items()):
        size = np.array(sorted(points), dtype=float)
        time = np.array([np.median(points[int(s)]) for s in size])
        tables[system][ranks] = CommCurve(BASE, ranks, system, size, time, time, time, "measured")
    return dict(tables)


def links_of(curves: dict[int, CommCurve]) -> str:
    """Tell NVLink from PCIe by what the fewest ranks move at the largest size."""
    curve = curves[min(curves)]
    moved = curve.size_bytes[-1] * 2 * (curve.num_ranks - 1) / curve.num_ranks / curve.time_us[-1] * 1e6
    return "nvlink" if moved > NVLINK_BYTES_PER_S else "pcie"


def ranks_score(curves: dict[int, CommCurve], links: str, nvls: bool, widths: Widths) -> Score:
    """Predict the largest rank count (8 where it is there) from the smaller ones."""
    target = 8 if 8 in curves else max(curves)
    predicted = extrapolate_ranks([c for n, c in curves.items() if n < target], target, links, nvls=nvls, widths=widths)
    truth = curves[target]
    at = np.isin(predicted.size_bytes, truth.size_bytes)
    time = truth.time_us[np.searchsorted(truth.size_bytes, predicted.size_bytes[at])]
    return score(predicted.time_us[at], predicted.low_us[at], predicted.high_us[at], time, predicted.size_bytes[at])


def score(value: np.ndarray, low: np.ndarray, high: np.ndarray, truth: np.ndarray, size: np.ndarray) -> Score:
    """Compare a prediction with what was measured."""
    width = np.log(np.maximum(high, 1e-9) / np.maximum(low, 1e-9)) / 2
    return Score(100 * np.abs(value / truth - 1), (low <= truth) & (truth <= high), width, size)


def join(scores: list[Score]) -> Score:
    """All points together."""
    return Score(*(np.concatenate([getattr(s, name) for s in scores]) for name in ("error", "inside", "width", "size")))


def sizes_score(curve: CommCurve) -> Score:
    """Predict every inner size from the curve without it."""
    parts = []
    for left_out in range(1, curve.size_bytes.size - 1):
        keep = np.arange(curve.size_bytes.size) != left_out
        parts.append(_cut(curve, keep, np.array([left_out])))
    return join(parts)


def beyond_score(curve: CommCurve) -> Score:
    """Predict the sizes up to 16 times beyond 1 MiB from those up to it."""
    size = curve.size_bytes
    return _cut(curve, size <= DECODE_BYTES, np.flatnonzero((size > DECODE_BYTES) & (size <= 16 * DECODE_BYTES)))


def _cut(curve: CommCurve, keep: np.ndarray, asked: np.ndarray) -> Score:
    known = CommCurve(
        BASE,
        curve.num_ranks,
        "",
        curve.size_bytes[keep],
        curve.time_us[keep],
        curve.low_us[keep],
        curve.high_us[keep],
        "measured",
    )
    e = known.at(curve.size_bytes[asked])
    return score(e.value, e.low, e.high, curve.time_us[asked], curve.size_bytes[asked])


def chosen(tables: Tables, systems: list[str], options: dict[str, tuple[str, bool]]) -> Widths:
    """The narrowest constants that hold 90% of the points of every one of ``systems``: machines differ, not points."""
    scored = [(widths, [ranks_score(tables[s], *options[s], widths) for s in systems]) for widths in GRID]
    holding = [(join(s).width.mean(), widths) for widths, s in scored if min(one.inside.mean() for one in s) >= 0.9]
    return min(holding, key=lambda pair: pair[0])[1] if holding else GRID[-1]


def main(argv: list[str] | None = None) -> int:
    """Print the tables; 0 when the targets hold, 1 when not, 2 for input that cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", type=Path, default=DEFAULT)
    parser.add_argument(
        "--library", default="nccl", help="rows of this library (default nccl; the form is of NCCL's rings and trees)"
    )
    parser.add_argument(
        "--links",
        action="append",
        default=[],
        metavar="SYSTEM=KIND",
        help="nvlink or pcie (default: by the bandwidth of a pair)",
    )
    parser.add_argument(
        "--no-nvls", action="append", default=[], metavar="SYSTEM", help="this system has no in-switch reduction"
    )
    args = parser.parse_args(argv)
    links = dict(entry.rpartition("=")[::2] for entry in args.links)
    if not set(links.values()) <= {"nvlink", "pcie"} or "" in links:
        parser.error("--links wants SYSTEM=nvlink or SYSTEM=pcie")
    try:
        return report(read(args.table, args.library), links, args.no_nvls)
    except NccltuneError as error:
        print("Error: " + "\n  ".join(error.lines()), file=sys.stderr)
        return error.exit_code


def report(tables: Tables, links: dict[str, str], no_nvls: list[str]) -> int:
    """Score and print everything."""
    if not tables:
        raise InputError("the table has no usable rows of that library", "", "check --library and the file")
    options = {s: (links.get(s) or links_of(curves), s not in no_nvls) for s, curves in tables.items()}
    usable = [s for s, curves in tables.items() if len(curves) > 1]
    passed = True
    print(
        f"most ranks from fewer (8 from 2 and 4), shipped constants (floor {WIDTHS.floor}, spread {WIDTHS.spread}); target: median <= 20%, inside 80-98%"
    )
    for system in usable:
        result = ranks_score(tables[system], *options[system], WIDTHS)
        small = result.error[result.size <= DECODE_BYTES]
        print(
            f"  {system:22s} {options[system][0]:6s} {result.line()}  median up to 1 MiB {np.median(small) if small.size else float('nan'):.1f}%"
        )
        passed &= bool(np.median(result.error) <= TARGET_MEDIAN) and 100 * result.inside.mean() >= TARGET_COVERAGE[0]
    if usable:
        print(f"  {'all':29s} {join([ranks_score(tables[s], *options[s], WIDTHS) for s in usable]).line()}")
    if len(usable) > 1:
        print("the same, interval constants chosen on the other systems only (the values have none to choose)")
        parts = []
        for system in usable:
            widths = chosen(tables, [s for s in usable if s != system], options)
            parts.append(ranks_score(tables[system], *options[system], widths))
            print(f"  {system:22s} floor {widths.floor:.2f} spread {widths.spread:.2f} {parts[-1].line()}")
        print(f"  {'all':22s} {'':23s} {join(parts).line()}")
    print("leave one size out (each gap is then a factor 4)")
    every = [(system, n, curve) for system, curves in tables.items() for n, curve in curves.items()]
    sizes = [(system, n, sizes_score(curve)) for system, n, curve in every if curve.size_bytes.size >= 3]
    for system, n, result in sizes:
        print(f"  {system:22s} {n} ranks {result.line()}")
    if sizes:
        print(f"  {'all':30s} {join([r for _, _, r in sizes]).line()}")
    beyond = [
        r for _, _, curve in every if curve.size_bytes[0] <= DECODE_BYTES and (r := beyond_score(curve)).error.size
    ]
    if beyond:
        print("2 to 16 MiB from the sizes up to 1 MiB")
        print(f"  {'all':30s} {join(beyond).line()}")
    if len(usable) > 1:
        every_system = chosen(tables, usable, options)
        print(f"chosen on all systems: floor {every_system.floor:.2f} spread {every_system.spread:.2f}")
    print("targets hold" if passed else "a target is missed")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
