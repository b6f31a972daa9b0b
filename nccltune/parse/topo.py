"""``nvidia-smi topo -m`` as people paste it: tabs or blanks, terminal escapes, network cards, cut off, or the wrong matrix."""

import re
from dataclasses import dataclass, field
from typing import Any

from nccltune.errors import InputError

# From best to worst; NVLink comes before all of them, more links first. SOC is what SYS was called before 2017.
PCIE_LINKS = ("PSB", "PIX", "PXB", "PHB", "NODE", "SOC", "SYS")
P2P_STATUS = {
    "OK": "works",
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "NS": "not supported",
    "DR": "disabled by regkey",
    "U": "unknown",
}
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\[[0-9;]{1,5}m")
_NVLINK = re.compile(r"^NV(\d+)$")
_GPU = re.compile(r"^GPU\d+$")
_HEADINGS = re.compile(r"\b(CPU Affinity|NUMA Affinity|GPU NUMA ID)\b")
_LINK = re.compile(r"^(X|N/A|NV\d+|[A-Z]{1,4})$")
# A network card as the kernel or nvidia-smi names it (NIC0, mlx5_0, irdma1): it has a number, and is no link name.
_DEVICE = re.compile(r"^(?!NV\d+$)[A-Za-z]\w*\d\w*$")


@dataclass(slots=True)
class TopoMatrix:
    """Links between the GPUs of one machine, as nvidia-smi names them."""

    gpus: list[str] = field(default_factory=list)
    links: dict[str, dict[str, str]] = field(default_factory=dict)
    nics: list[str] = field(default_factory=list)
    nic_links: dict[str, dict[str, str]] = field(default_factory=dict)
    numa: dict[str, int | None] = field(default_factory=dict)
    p2p_status: dict[str, dict[str, str]] = field(default_factory=dict)
    """Filled only from a ``topo -p2p`` matrix, which tells no links."""
    complete: bool = True
    warnings: list[str] = field(default_factory=list)

    @property
    def worst_gpu_link(self) -> str | None:
        """Slowest link of any pair of GPUs; None where no pair is known."""
        return worst_link([name for row in self.links.values() for name in row.values()])

    def to_json(self) -> dict[str, Any]:
        """Return the fields of ``import --kind topo --json``; ``p2p_status`` only where that is what was given."""
        document: dict[str, Any] = {
            "kind": "topo",
            "gpus": self.gpus,
            "links": self.links,
            "nics": self.nics,
            "nic_links": self.nic_links,
            "numa": self.numa,
            "worst_gpu_link": self.worst_gpu_link,
            "complete": self.complete,
            "warnings": self.warnings,
        }
        if self.p2p_status:
            document["p2p_status"] = self.p2p_status
        return document


def worst_link(names: list[str]) -> str | None:
    """Return the slowest of some link names (``NV18``, ``PIX`` .. ``SYS``); None for none."""
    return max(names, key=link_rank, default=None)


def link_rank(name: str) -> tuple[int, int]:
    """Order link names from best to worst: more NVLinks first, then by distance on PCIe."""
    nvlink = _NVLINK.match(name)
    if nvlink:
        return (0, -int(nvlink.group(1)))
    return (1, PCIE_LINKS.index(name) if name in PCIE_LINKS else len(PCIE_LINKS))


def parse_topo(text: str) -> TopoMatrix:
    """Read a ``topo -m`` matrix; raises InputError where the text holds none.

    A table that is cut off gives what is there, ``complete`` false and a warning. A ``topo -p2p`` status matrix, often
    given by mistake, gives ``p2p_status`` and no links.
    """
    lines = _clean(text)
    starts = [i for i, line in enumerate(lines) if _is_header(line)]
    if not starts:
        raise InputError(
            "this is no output of nvidia-smi topo -m",
            "no line names GPUs as columns",
            "give the text that 'nvidia-smi topo -m' prints, from its first line",
        )
    for start in starts:
        columns, headings = _header(lines[start])
        rows = _rows(lines[start + 1 :], columns)
        if rows:
            break
    else:
        raise InputError(
            "this topology matrix has a header and no rows", "the text is cut off there", "give the whole output"
        )
    cells = [cell for row in rows.values() for cell in row[: len(columns)] if cell != "X"]
    if _is_p2p(cells, lines, headings):
        return _p2p_matrix(columns, rows)
    return _topo_matrix(columns, headings, rows, lines[start + 1 :])


def _clean(text: str) -> list[str]:
    text = _ESCAPE.sub("", text.lstrip("\ufeff"))
    return [
        line.replace("|", " ").lstrip("> ").rstrip() if line.startswith((">", "|")) else line.rstrip()
        for line in text.splitlines()
    ]


def _is_header(line: str) -> bool:
    """A header names devices where a row has links; pasted without its leading blank it starts like a row."""
    devices, _ = _header(line)
    return bool(devices) and bool(_GPU.match(devices[0])) and all(_DEVICE.match(name) for name in devices)


def _header(line: str) -> tuple[list[str], list[str]]:
    first = _HEADINGS.search(line)
    devices = line[: first.start()] if first else line
    return devices.split(), _HEADINGS.findall(line)


def _rows(lines: list[str], columns: list[str]) -> dict[str, list[str]]:
    """Cells by device, until the legend or another table."""
    rows: dict[str, list[str]] = {}
    for line in lines:
        tokens = line.split()
        if tokens and (tokens[0].startswith("Legend") or _is_header(line)):
            break
        if len(tokens) > 1 and (tokens[0] in columns or _GPU.match(tokens[0])) and _LINK.match(tokens[1]):
            rows.setdefault(tokens[0], _cells(line, len(columns)))
    return rows


def _cells(line: str, num_columns: int) -> list[str]:
    """Split a row at blanks. Its tabs pad as well as separate, and only tell when the CPU affinity is empty."""
    cells = line.split()[1:]
    tabbed = line.split("\t")[1 + num_columns :]
    if len(tabbed) > 1 and not tabbed[0].strip():
        cells.insert(num_columns, "")
    return cells


def _is_p2p(cells: list[str], lines: list[str], headings: list[str]) -> bool:
    if cells:
        return all(cell in P2P_STATUS for cell in cells)
    return not headings and any("Status Ok" in line for line in lines)


def _p2p_matrix(columns: list[str], rows: dict[str, list[str]]) -> TopoMatrix:
    gpus = [name for name in columns if _GPU.match(name)]
    status = {a: {b: c for b, c in zip(columns, rows.get(a, []), strict=False) if b != a} for a in gpus}
    bad = {f"{a}-{b}": c for a, row in status.items() for b, c in row.items() if c != "OK" and a < b}
    said = "; ".join(f"{pair} {code} ({P2P_STATUS.get(code, 'unknown code')})" for pair, code in sorted(bad.items()))
    return TopoMatrix(
        gpus=gpus,
        links={gpu: {} for gpu in gpus},
        numa=dict.fromkeys(gpus),
        p2p_status=status,
        complete=False,
        warnings=[
            "this is a peer-access status matrix (nvidia-smi topo -p2p), not a topo -m matrix: it tells no links; give the output of 'nvidia-smi topo -m' for those",
            f"peer access: {said}" if said else "peer access: works between all pairs that are shown",
        ],
    )


def _topo_matrix(columns: list[str], headings: list[str], rows: dict[str, list[str]], rest: list[str]) -> TopoMatrix:
    extra = [name for name in rows if name not in columns]
    gpus = [name for name in columns if _GPU.match(name)] + extra
    nics = [name for name in columns if not _GPU.match(name)]
    matrix = TopoMatrix(
        gpus=gpus, nics=nics, links={g: {} for g in gpus}, nic_links={g: {} for g in gpus} if nics else {}
    )
    if extra:
        _incomplete(matrix, f"the header does not name {', '.join(extra)}: its right part is cut off")
    for gpu in gpus:
        cells = rows.get(gpu, [])
        matrix.numa[gpu] = _numa(cells[len(columns) :], headings)
        _read_cells(matrix, gpu, columns, cells)
    _mirror(matrix, rows)
    missing_nics = [nic for nic in nics if nic not in rows]
    if missing_nics:
        matrix.warnings.append(
            f"the rows of {', '.join(missing_nics)} are missing; the links of the GPUs do not need them"
        )
    if any(_is_header(line) for line in rest):
        matrix.warnings.append("the text holds more than one matrix: only the first is read")
    return matrix


def _read_cells(matrix: TopoMatrix, gpu: str, columns: list[str], cells: list[str]) -> None:
    if not cells:
        _incomplete(matrix, f"the row of {gpu} is missing")
        return
    for column, cell in zip(columns, cells, strict=False):
        if column == gpu:
            continue
        if cell in PCIE_LINKS or _NVLINK.match(cell):
            (matrix.links if _GPU.match(column) else matrix.nic_links)[gpu][column] = cell
        else:
            _incomplete(matrix, f"{gpu}-{column} is '{cell}', which is no link name")
    if len(cells) < len(columns):
        _incomplete(matrix, f"the row of {gpu} has {len(cells)} of {len(columns)} links: the table is cut off")


def _mirror(matrix: TopoMatrix, rows: dict[str, list[str]]) -> None:
    """Fill from the other direction what a cut table lost, and say where the two directions differ."""
    for a in matrix.gpus:
        for b, name in list(matrix.links[a].items()):
            other = matrix.links[b].setdefault(a, name)
            if other != name and a < b:
                matrix.warnings.append(f"{a}-{b} is {name} one way and {other} the other way")
    for nic in matrix.nics:
        for gpu, cell in zip(matrix.gpus, rows.get(nic, []), strict=False):
            if cell in PCIE_LINKS:
                matrix.nic_links[gpu].setdefault(nic, cell)


def _numa(cells: list[str], headings: list[str]) -> int | None:
    """Read the NUMA node beside a row: the second cell after the links where ``CPU Affinity`` stands before it."""
    if "NUMA Affinity" not in headings:
        return None
    position = headings.index("NUMA Affinity")
    value = cells[position] if position < len(cells) else ""
    return int(value) if value.isdigit() else None


def _incomplete(matrix: TopoMatrix, warning: str) -> None:
    matrix.complete = False
    matrix.warnings.append(warning)
