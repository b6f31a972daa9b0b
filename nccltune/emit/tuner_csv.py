"""CSV for NVIDIA's example tuner plugin (NVIDIA/nccl plugins/tuner/example): the one format with a choice per size.

The plugin gives every collective without a matching row one channel (plugin.c, pluginGetCollInfo), so each collective
gets a catch-all row and each row an explicit channel count. First match wins; a row whose pair NCCL does not have is
passed over for the next; unknown names silently become allreduce, ring or simple; a line holds at most 255 characters.
"""

from nccltune.emit.document import Document, Rule, comment_lines, finish
from nccltune.emit.findings import Reading, lines_of, parsed
from nccltune.errors import InputError

NAME = "tuner-csv"
USE = (
    "export NCCL_TUNER_PLUGIN=/path/libnccl-tuner-example.so NCCL_TUNER_CONFIG_FILE=/path/FILE, "
    "and leave NCCL_ALGO and NCCL_PROTO unset: they beat the plugin"
)
COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
ALGOS = {"tree": "Tree", "ring": "Ring", "collnet_direct": "CollNetDirect", "collnet_chain": "CollNetChain", "nvls": "NVLS",
         "nvls_tree": "NVLSTree", "pat": "PAT"}  # fmt: skip
PROTOS = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}
_ALGO_NAMES = {full.lower(): short for short, full in ALGOS.items()}
_MAX_LINE = 255
MAX_BYTES = 2**64 - 1
"""The plugin reads sizes with strtoull into a size_t: this row end leaves no size without a row."""


def write(document: Document) -> str:
    """Return the CSV; raises InputError when there is nothing to write."""
    if not document.rules:
        raise InputError(
            "a tuner CSV needs rules per size",
            "this document has none",
            "give --run with a run whose NCCL log told its choices",
        )
    columns = "# collective,min_bytes,max_bytes,algorithm,protocol,channels,num_nodes,num_ranks"
    return finish(
        [
            *(line[:_MAX_LINE] for line in _wrapped(comment_lines(document))),
            columns,
            *(row(rule) for rule in document.rules),
        ]
    )


def row(rule: Rule) -> str:
    """Return the CSV row of one rule."""
    algo = _ALGO_NAMES.get(rule.algo.replace("_", "").lower())
    if algo is None or rule.proto.lower() not in PROTOS or rule.collective not in COLLECTIVES or rule.num_channels < 1:
        raise InputError(
            f"no tuner row can be written for {rule}",
            "unknown algorithm, protocol or collective, or no channel count",
            "",
        )
    fields = (
        rule.collective,
        rule.min_bytes,
        rule.max_bytes,
        algo,
        rule.proto.lower(),
        rule.num_channels,
        rule.num_nodes,
        rule.num_ranks,
    )
    return ",".join(str(field) for field in fields)


def _wrapped(lines: list[str]) -> list[str]:
    """Break long comments: the plugin reads at most 255 characters at once and would take the rest for a rule."""
    result: list[str] = []
    for line in lines:
        while len(line) > _MAX_LINE - 1:
            cut = line.rfind(" ", 2, _MAX_LINE - 1)
            cut = cut if cut > 2 else _MAX_LINE - 1
            result.append(line[:cut])
            line = "#   " + line[cut:].lstrip()
        result.append(line)
    return result


def parse(text: str) -> dict[str, str]:
    """Return each rule as ``collective[min-max]@nodes/ranks`` -> ``algo/proto/channels``."""
    return parsed(read(text), NAME)


def read(text: str) -> Reading:
    """Read as the example plugin does, and report what it would silently turn into something else."""
    reading = Reading(first_wins=True)
    covered: dict[str, int] = {}
    for number, line in enumerate(lines_of(text), 1):
        if line.startswith("#") or not line.strip():
            if len(line) > _MAX_LINE:
                reading.problem(
                    "too-long",
                    number,
                    None,
                    "the plugin takes the rest of this comment for a rule",
                    "at most 255 characters a line",
                )
            continue
        fields = [part.strip(" \t\r") for part in line.split(",") if part]
        if not 8 <= len(fields) <= 10 or len(line) > _MAX_LINE:
            reading.problem("dropped", number, None, f"the plugin skips this row: {len(fields)} fields, {len(line)} characters",
                            "8 to 10 fields, at most 255 characters")  # fmt: skip
            continue
        _row(reading, fields, number, covered)
    for collective in COLLECTIVES:
        if reading.entries and covered.get(collective, -1) < 2**32 - 1:
            reading.problem("no-catch-all", None, None, f"{collective} has no row for every size: without one it runs on 1 channel",
                            f"end with {collective},0,{MAX_BYTES},ring,simple,CHANNELS,-1,-1")  # fmt: skip
    return reading


def _row(reading: Reading, fields: list[str], number: int, covered: dict[str, int]) -> None:
    collective, low, high, algo, proto, channels, nodes, ranks = fields[:8]
    for value, known, becomes in (
        (collective, COLLECTIVES, "allreduce"),
        (algo, ALGOS, "ring"),
        (proto, PROTOS, "simple"),
    ):
        if value not in known:
            reading.problem(
                "unknown-name",
                number,
                None,
                f"'{value}' silently becomes {becomes} (names are lower case)",
                f"one of {', '.join(known)}",
            )
            return
    numbers = [low, high, channels, nodes, ranks]
    if not all(n.lstrip("-").isdigit() for n in numbers):
        reading.problem(
            "not-a-number",
            number,
            None,
            f"sizes, channels, nodes and ranks must be whole numbers: {', '.join(numbers)}",
            "no units",
        )
        return
    if int(channels) < 1:
        reading.problem("channels", number, None, f"channels = {channels} leaves this row on 1 channel, contrary to the plugin's README",
                        "write the channel count")  # fmt: skip
    if int(low) > int(high):
        reading.problem("empty-range", number, None, f"{low} is above {high}: the row never matches", "swap them")
    if int(low) <= covered.get(collective, -1) + 1:
        covered[collective] = max(covered.get(collective, -1), int(high))
    reading.add(f"{collective}[{low}-{high}]@{nodes}/{ranks}", f"{algo}/{proto}/{channels}", number)
