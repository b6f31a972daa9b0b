"""Signs in a raw value that its writer meant something else: quotes, comments, variables. Shared by the line formats."""

import re

_COMMENT = re.compile(r"\s+#(?=\s|$|[A-Za-z0-9])")
_DOLLAR = re.compile(r"\$\{?[A-Za-z_][A-Za-z0-9_]*\}?|\$\([^)]*\)|`[^`]+`")


def quoted(value: str) -> str | None:
    """Return the text inside the quotes that a literal reader would keep, or None where there are none."""
    match = re.match(r"""^(["'])(.*)\1(\s*(#.*)?)$""", value.strip())
    return match.group(2) if match else None


def inline_comment(value: str) -> str | None:
    """Return the comment at the end of a value, or None."""
    match = _COMMENT.search(value)
    return value[match.start() :].strip() if match else None


def literal_dollar(value: str) -> str | None:
    """Return the first ``$NAME``, ``$(...)`` or backticks of a value, or None."""
    match = _DOLLAR.search(value)
    return match.group(0) if match else None
