"""Lines of bounded length, so that no pattern meets a line that takes it minutes (a binary file, a dumped prompt);
and files of bounded size."""

from pathlib import Path


def bound_lines(text: str, max_length: int) -> str:
    """Cut every line of ``text`` to ``max_length`` characters; a text without longer lines is returned as it is."""
    lines = text.split("\n")
    if max(map(len, lines)) <= max_length:
        return text
    return "\n".join(line[:max_length] for line in lines)


def read_bounded(path: Path, max_bytes: int) -> bytes | None:
    """Read a whole file, None where it is larger; a pipe or a device tells no size, so what comes out is counted."""
    if path.stat().st_size > max_bytes:
        return None
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    return data if len(data) <= max_bytes else None
