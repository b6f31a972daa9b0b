"""JSON for scripts: the variables with their evidence, the header's facts and the warnings, under one schema name."""

import json
from typing import Any

from nccltune.emit.document import Document, check_variable
from nccltune.emit.findings import Reading, parsed

NAME = "json"
USE = "read .env from it"
SCHEMA = "nccltune.env"
SCHEMA_VERSION = 1


def body(document: Document) -> dict[str, Any]:
    """Return the document as JSON data."""
    for variable in document.variables:
        check_variable(variable, NAME)
    spec = document.speculation
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        **document.facts,
        "env": document.env,
        "variables": [{"name": v.name, "value": v.value, "comment": v.comment} for v in document.variables],
        "speculation": None
        if spec is None
        else {"num_steps": spec.num_steps, "eagle_topk": spec.eagle_topk, "num_draft_tokens": spec.num_draft_tokens},
        "engine_flags": list(document.engine_flags),
        "header": list(document.header),
        "warnings": list(document.warnings),
    }


def write(document: Document) -> str:
    """Return the JSON text."""
    return json.dumps(body(document), indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def parse(text: str) -> dict[str, str]:
    """Return the variables; raises InputError for anything but an object of strings."""
    return parsed(read(text), NAME)


def read(text: str) -> Reading:
    """Read our own document, or a plain object of names and values."""
    reading = Reading()
    try:
        document = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        reading.problem("unreadable", getattr(error, "lineno", None), None, f"not JSON: {error}", "make the file again")
        return reading
    env = document.get("env", document) if isinstance(document, dict) else None
    if not isinstance(env, dict):
        reading.problem("unreadable", None, None, "expected an object of variable names and values", "")
        return reading
    for name, value in env.items():
        if isinstance(value, str):
            reading.add(name, value, 1)
        else:
            reading.problem(
                "not-a-string",
                None,
                name,
                f"{name} is {json.dumps(value)[:40]}, not text",
                f'write "{name}": "{value}"',
            )
    return reading
