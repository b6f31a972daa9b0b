"""Write a model, drafter or machine as the TOML file that the registry reads (the standard library only reads TOML)."""

import math
import re
from collections.abc import Mapping
from typing import Any

from nccltune.schemas.model import Drafter, Model
from nccltune.schemas.topology import Topology

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_LINE_WIDTH = 100


def to_toml(record: Model | Drafter | Topology, comment: str = "") -> str:
    """Return the file text of ``record``; fields that hold their default are left out, reading it gives it back."""
    kind = type(record).__name__.lower()
    document = record.model_dump(mode="python", exclude_defaults=True)
    header = "".join(f"# {line}\n" for line in comment.splitlines())
    return header + dumps({"schema": f"nccltune.{kind}", "schema_version": 1, **document})


def dumps(document: Mapping[str, Any]) -> str:
    """Return ``document`` (strings, numbers, booleans, lists, tables; None is left out) as ASCII TOML."""
    return "\n".join(_table_lines(document, ())).strip("\n") + "\n"


def _table_lines(table: Mapping[str, Any], path: tuple[str, ...], heading: str = "[{}]") -> list[str]:
    lines = [heading.format(".".join(map(_key, path)))] if path else []
    tables = {k: v for k, v in table.items() if isinstance(v, Mapping) or _is_tables(v)}
    lines += [f"{_key(k)} = {_value(v)}" for k, v in table.items() if v is not None and k not in tables]
    for key, value in tables.items():
        for entry in [value] if isinstance(value, Mapping) else value:
            lines += ["", *_table_lines(entry, (*path, key), "[{}]" if isinstance(value, Mapping) else "[[{}]]")]
    return lines


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(entry, Mapping) for entry in value)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list | tuple):
        return _array([_value(item) for item in value])
    raise TypeError(f"TOML has no form for {type(value).__name__}")


def _array(items: list[str]) -> str:
    """On one line if it fits; otherwise numbers fill lines and texts have one each."""
    flat = f"[{', '.join(items)}]"
    if len(flat) <= _LINE_WIDTH:
        return flat
    rows: list[str] = []
    for item in items:
        if rows and not item.startswith('"') and len(rows[-1]) + len(item) + 2 <= _LINE_WIDTH:
            rows[-1] += f" {item},"
        else:
            rows.append(f"  {item},")
    return "[\n" + "\n".join(rows) + "\n]"


def _float(value: float) -> str:
    """Write 1.792e12 for figures that ten digits hold, and every digit of the others."""
    if math.isfinite(value) and abs(value) >= 1e9 and float(f"{value:.10g}") == value:
        return f"{value:.10g}".replace("e+", "e")
    text = repr(value)
    return text if any(c in text for c in ".en") else f"{text}.0"


def _string(text: str) -> str:
    return '"' + "".join(_character(c) for c in text) + '"'


def _character(c: str) -> str:
    if c in _ESCAPES:
        return _ESCAPES[c]
    code = ord(c)
    if 0x20 <= code < 0x7F:
        return c
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"
