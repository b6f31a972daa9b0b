"""NCCL's own cost model as it prints it at communicator init (subsystem TUNING): latency and bandwidth by algorithm and protocol."""

import re

from nccltune.knobs import PROTOS
from nccltune.parse.nccl_names import algo_name, proto_name

# function -> algorithm -> protocol -> {latency_us, bandwidth_gb_s}
ModelTable = dict[str, dict[str, dict[str, dict[str, float]]]]
MaxThreads = dict[str, dict[str, int]]
_Column = tuple[str, str]

_LINE = re.compile(
    r"^(?P<prefix>.*?)(?:NCCL INFO )?\s*(?P<name>Latency/AlgBw|Algorithm|Max NThreads|Broadcast|Reduce|AllGather"
    r"|ReduceScatter|AllReduce|AlltoAll|SendRecv)\s+\|(?P<cells>.*)\|\s*$"
)
_CELL = re.compile(r"^\s*(-?[\d.]+|-?inf|-?nan)\s*/\s*(-?[\d.]+|-?inf|-?nan)\s*$")


def parse_model_table(text: str) -> tuple[ModelTable | None, MaxThreads | None, list[str]]:
    """Return (table, threads, warnings); None where it is not in the log.

    Up to 2.23 one heading row names ``Ring/LL`` per column; later the table comes in blocks of three algorithms.
    A bandwidth of 0 means that the pair is off.
    """
    table: ModelTable = {}
    threads: MaxThreads = {}
    warnings: list[str] = []
    columns: dict[str, list[_Column]] = {}
    rows = (line for line in text.split("\n") if "|" in line)
    for match in filter(None, map(_LINE.match, rows)):
        source, name, cells = match["prefix"].strip(), match["name"], match["cells"].split("|")
        if name in ("Latency/AlgBw", "Algorithm"):
            columns[source] = _old_columns(cells) if name == "Latency/AlgBw" else _block_columns(cells)
        elif source in columns and len(cells) == len(columns[source]):
            _row(name, list(zip(columns[source], cells, strict=True)), table, threads, warnings)
    return table or None, threads or None, list(dict.fromkeys(warnings))


def predicted_us(
    table: ModelTable, algo: str, proto: str, size_bytes: int, collective: str = "AllReduce"
) -> float | None:
    """Estimate NCCL's own time: latency + bytes / (1000 * GB/s); None where the pair is off or not in the table.

    Source: NVIDIA/nccl src/graph/tuning.cc ncclTopoGetAlgoTime, without its correction factors per size. Ring LL of
    7.8 us and 141 GB/s at 14336 bytes: 7.8 + 14336 / 141000 = 7.90 us.
    """
    cell = table.get(collective, {}).get(algo, {}).get(proto)
    if cell is None or cell["bandwidth_gb_s"] <= 0:
        return None
    return cell["latency_us"] + size_bytes / (1000 * cell["bandwidth_gb_s"])


def _old_columns(cells: list[str]) -> list[_Column]:
    pairs = [cell.partition("/") for cell in cells]
    return [(algo_name(algo), proto_name(proto)) for algo, _, proto in pairs]


def _block_columns(cells: list[str]) -> list[_Column]:
    return [(algo_name(cell), proto) for cell in cells for proto in PROTOS]


def _row(
    name: str, cells: list[tuple[_Column, str]], table: ModelTable, threads: MaxThreads, warnings: list[str]
) -> None:
    for (algo, proto), text in cells:
        if name == "Max NThreads":
            if text.strip().isdigit():
                threads.setdefault(algo, {})[proto] = int(text)
            continue
        match = _CELL.match(text)
        if match is None:
            continue
        value = {"latency_us": float(match[1]), "bandwidth_gb_s": float(match[2])}
        old = table.setdefault(name, {}).setdefault(algo, {}).get(proto)
        if old is not None and old != value:
            warnings.append("the log holds several cost tables that differ (several communicators): the last is kept")
        table[name][algo][proto] = value
