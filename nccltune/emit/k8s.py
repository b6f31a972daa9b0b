"""A Kubernetes ConfigMap for ``envFrom``: every value a JSON string, which is a YAML string too, so "0" stays text.

The reader knows the part of YAML that such files use (block mappings, quoted and plain scalars, and the ``name:`` /
``value:`` pairs of a container's ``env:``); anything else is reported as not read, never guessed.
"""

import json
import re

from nccltune.emit.document import Document, Variable, check_variable, comment, comment_lines, finish
from nccltune.emit.findings import Reading, lines_of, parsed

NAME = "k8s"
USE = "kubectl apply -f FILE, then envFrom: [{configMapRef: {name: nccl-env}}] in the container"
_PAIR = re.compile(r"""^(\s*)(?:-\s+)?(["']?)([A-Za-z_][A-Za-z0-9_.-]*)\2\s*:(?:\s+(.*)|)$""")
_NOT_TEXT = re.compile(
    r"^(?:[-+]?(?:\d[\d_]*)(?:\.\d*)?(?:[eE][-+]?\d+)?|0[xob][0-9a-fA-F]+|true|false|yes|no|on|off|null|~|)$",
    re.IGNORECASE,
)


def render(variable: Variable) -> str:
    """Return the ``data:`` entry of one variable."""
    check_variable(variable, NAME)
    return f"  {variable.name}: {json.dumps(variable.value, ensure_ascii=False)}"


def write(document: Document) -> str:
    """Return the manifest."""
    lines = [*comment_lines(document), "apiVersion: v1", "kind: ConfigMap", "metadata:", "  name: nccl-env"]
    lines.append("data:" if document.variables else "data: {}")
    for variable in document.variables:
        if variable.comment:
            lines.append(comment(f"{variable.name}: {variable.comment}", "  # "))
        lines.append(render(variable))
    return finish(lines)


def parse(text: str) -> dict[str, str]:
    """Return the variables that a container gets."""
    return parsed(read(text), NAME)


def read(text: str) -> Reading:
    """Read the ``data:`` of a ConfigMap, or the ``env:`` lists of a pod."""
    reading = Reading()
    pending: str | None = None
    block = -1  # indent of the key whose block scalar is being passed over
    for number, line in enumerate(lines_of(text.removeprefix("\ufeff")), 1):
        stripped = line.strip()
        indent = len(line) - len(line.lstrip(" "))
        if not stripped or stripped.startswith("#") or (block >= 0 and indent > block):
            continue
        block = -1
        if line.startswith("\t"):
            reading.problem("unreadable", number, None, "a tab as indentation is not YAML", "indent with spaces")
            return reading
        match = _PAIR.match(line)
        if match is None:
            continue
        key, raw = match.group(3), match.group(4) or ""
        if key == "name":
            pending = _scalar(raw)[0]
        elif key == "value" and pending is not None:
            _entry(reading, pending, raw, number)
            pending = None
        elif re.fullmatch(r"[A-Z][A-Z0-9_]*", key):
            _entry(reading, key, raw, number)
        if re.match(r"^[|>][-+0-9]*(\s+#.*)?$", raw):
            block = indent
    return reading


def _entry(reading: Reading, name: str, raw: str, number: int) -> None:
    value, is_quoted, error = *_scalar(raw), None
    if re.match(r"^[|>][-+0-9]*$", raw.strip()):
        error = "a block value ends in a line break, which becomes part of the variable"
    elif not is_quoted and _NOT_TEXT.match(value):
        error = f"{value or 'an empty value'} is not text to YAML: Kubernetes refuses it"
    elif not is_quoted and value[0] in "*&!%@`{[,|>":
        error = f"a plain value cannot start with {value[0]}"
    if error:
        reading.problem(
            "not-a-string", number, name, f"{name}: {error}", f'write {name}: "{value}"' if value else "quote the value"
        )
    if name:
        reading.add(name, value, number)


def _scalar(raw: str) -> tuple[str, bool]:
    """Return a YAML scalar's text and whether it was quoted."""
    raw = raw.strip()
    if raw.startswith('"'):
        match = re.match(r'^"(?:[^"\\]|\\.)*"', raw)
        if match:
            try:
                return str(json.loads(match.group(0))), True
            except ValueError:
                return match.group(0)[1:-1], True
    if raw.startswith("'"):
        match = re.match(r"^'((?:[^']|'')*)'", raw)
        if match:
            return match.group(1).replace("''", "'"), True
    return re.split(r"(?:^|\s)#", raw, maxsplit=1)[0].rstrip(), False
