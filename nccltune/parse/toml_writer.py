"""Write a model or drafter record as the TOML file that the registry reads (the standard library only reads TOML)."""

import re
from collections.abc import Mapping
from typing import Any

from nccltune.schemas.model import Drafter, Model

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_LINE_WIDTH = 100


def to_toml(record: Model | Drafter) -> str:
    """Return the file text of ``record``; fields that hold their default are left out, reading it gives it back."""
    kind = "drafter" if isinstance(record, Drafter) else "model"
    document = record.model_dump(mode="python", exclude_defaults=True)
    return dumps({"schema": f"nccltune.{kind}", "schema_version": 1, **document})


def dumps(document: Mapping[str, Any]) -> str:
    """Return ``document`` (strings, numbers, booleans, lists, tables; None is left out) as ASCII TOML."""
    return "\n".join(_table_lines(document, ())).strip("\n") + "\n"


def _table_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = [f"[{'.'.join(map(_key, path))}]"] if path else []
    lines += [f"{_key(k)} = {_value(v)}" for k, v in table.items() if v is not None and not isinstance(v, Mapping)]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += ["", *_table_lines(value, (*path, key))]
    return lines


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
    flat = f"[{', '.join(items)}]"
    if len(flat) <= _LINE_WIDTH:
        return flat
    return "[\n" + "".join(f"  {item},\n" for item in items) + "]"


def _float(value: float) -> str:
    text = repr(value)
    if text in ("inf", "-inf", "nan"):
        return text
    return text if any(c in text for c in ".e") else f"{text}.0"


def _string(text: str) -> str:
    return '"' + "".join(_character(c) for c in text) + '"'


def _character(c: str) -> str:
    if c in _ESCAPES:
        return _ESCAPES[c]
    code = ord(c)
    if 0x20 <= code < 0x7F:
        return c
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"
