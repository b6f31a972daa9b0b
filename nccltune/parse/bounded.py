"""Lines of bounded length, so that no pattern meets a line that takes it minutes (a binary file, a dumped prompt)."""


def bound_lines(text: str, max_length: int) -> str:
    """Cut every line of ``text`` to ``max_length`` characters; a text without longer lines is returned as it is."""
    lines = text.split("\n")
    if max(map(len, lines)) <= max_length:
        return text
    return "\n".join(line[:max_length] for line in lines)
