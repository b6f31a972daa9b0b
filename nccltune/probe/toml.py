"""Write a machine as the TOML file that people read and edit (the standard library only reads TOML)."""

import json
from collections.abc import Mapping
from typing import Any

from nccltune.schemas.topology import Topology

_LINE = 110


def topology_toml(topology: Topology, comment: str = "") -> str:
    """Return the file's text; :func:`nccltune.registry.load_file` reads it back to the same machine."""
    document = topology.model_dump(exclude_defaults=True)
    curves = document.pop("allreduce", [])
    tables = {key: document.pop(key) for key in ("gpu", "links")}
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += ['schema = "nccltune.topology"', "schema_version = 1", *_pairs(document)]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *_pairs(table)]
    for curve in curves:
        lines += ["", "[[allreduce]]", *_pairs(curve)]
    return "\n".join(lines) + "\n"


def _pairs(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in table.items()]


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(entry)}" for key, entry in value.items()) + " }" if value else "{}"
    if isinstance(value, list):
        return _array([_value(entry) for entry in value])
    if isinstance(value, float):
        return _float(value)
    return json.dumps(value)  # strings, whole numbers and booleans are written alike in both


def _float(value: float) -> str:
    """Write 1.792e12 for round figures and every digit of the others."""
    round_figure = abs(value) >= 1e9 and value % 1e6 == 0
    return f"{value:.10g}".replace("e+", "e") if round_figure else repr(value)


def _array(entries: list[str]) -> str:
    """On one line if it fits; otherwise numbers fill lines and texts have one each."""
    line = f"[{', '.join(entries)}]"
    if len(line) <= _LINE:
        return line
    rows: list[str] = []
    for entry in entries:
        if rows and not entry.startswith('"') and len(rows[-1]) + len(entry) + 2 <= _LINE:
            rows[-1] += f" {entry},"
        else:
            rows.append(f"  {entry},")
    return "[\n" + "\n".join(rows) + "\n]"
