"""Clean lines of a captured nccl-tests report: launcher prefixes, colours, time stamps and log output inside a row."""

import re
from collections.abc import Iterator

from nccltune.parse.bounded import bound_lines

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\r(?!\n)")
_STAMP = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
# What mpirun --tag-output, srun --label, torchrun, pdsh, docker compose, kubectl, ts, journalctl and mail put in front of a line.
_PREFIX = re.compile(
    rf"(?:[A-Z][a-z]{{2}}\s+\d+\s\d\d:\d\d:\d\d\s\S+\s[^\s\[:]+(?:\[\d+\])?:\s|\[\d+,\d+\]<std\w+>:\s?|\[(?:\s?\d+|[^\]\s]{{1,80}})\]:?(?=\s|#|$)|\d+:(?=\s)|{_STAMP}\s+|\[{_STAMP}\]\s*"
    r"|std(?:out|err)\s[FP]\s|[A-Za-z][\w.-]*\s+\|\s|>\s?|[A-Za-z][\w.-]*:\s(?=\s*#|\s*\d+\s+\d+\s+[a-z]))"
)
_TRAILING_STAMP = re.compile(rf"\s+{_STAMP}\s*$")
_HOST_OF_RANK = re.compile(r"Rank\s+\d+\s.*?\bon\s+(\S+)\s+device")
_HOST_OF_LOG = re.compile(r"^(?:\[[^\]]*\]\s*)*([\w.-]+):\d+:\d+ \[", re.MULTILINE)
_GENERIC_HOST = r"[A-Za-z][\w.-]*"
_MIN_PIPES = 8
_MAX_LINE = 4096


def clean_text(text: str) -> str:
    """Remove the byte-order mark, carriage returns and terminal codes, and join lines continued by a backslash."""
    text = bound_lines(text.removeprefix("\ufeff").replace("\r\n", "\n"), _MAX_LINE)
    return re.sub(r"\\\n[ \t]*", " ", _ANSI.sub("", text))


def strip_prefix(line: str) -> str:
    """Remove launcher prefixes and a trailing time stamp; markdown table bars become blanks."""
    if line.count("|") >= _MIN_PIPES and "NCCL INFO" not in line:
        line = line.replace("|", " ")
    for _ in range(4):
        match = _PREFIX.match(line.lstrip())
        if match is None:
            break
        line = line.lstrip()[match.end() :]
    return _TRAILING_STAMP.sub("", line.rstrip())


class LogCutter:
    """Cuts output of NCCL and of the error handler off the end of a line that began as a row.

    Host names that the text itself names are used first: ``-1vm:753:753 [1] NCCL INFO`` is ``-1`` and a log line.
    """

    def __init__(self, text: str) -> None:
        hosts = {*_HOST_OF_RANK.findall(text), *_HOST_OF_LOG.findall(text)}
        names = [re.escape(host) for host in sorted(hosts, key=len, reverse=True)]
        stamp = rf"(?:\[(?:{_STAMP}|\d+(?:,\d+)?)\](?:<std\w+>:)?\s*)*"
        self._cuts = [
            re.compile(
                rf"{stamp}(?:{host})(?::\d+:\d+ \[|: Test (?:NCCL|CUDA) failure|: Test timeout| pid \d+: Test failure)"
            )
            for host in (["|".join(names)] if names else []) + [_GENERIC_HOST]
        ]

    def cut(self, line: str) -> str:
        """Return the part of ``line`` before any log output."""
        if "NCCL" not in line and "Test " not in line:
            return line if ":" not in line else self._cut_at_host(line)
        return self._cut_at_host(line)

    def _cut_at_host(self, line: str) -> str:
        for cut in self._cuts:
            match = cut.search(line)
            if match is not None:
                return line[: match.start()]
        return line


def lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield (raw line, cleaned line) for every line of a cleaned text."""
    cutter = LogCutter(text)
    for raw in text.split("\n"):
        yield raw, cutter.cut(strip_prefix(raw))
