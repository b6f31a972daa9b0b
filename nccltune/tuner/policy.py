"""The policy file of the tuner plugin: write it, and read it exactly as policy.c does, complaint for complaint."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from nccltune.errors import InputError
from nccltune.knobs import ALGOS, PROTOS

VERSION_LINE = "nccltune-policy 1"
"""First line of every policy. History: 1 (2026-11) first."""
COLLECTIVES = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
COLUMNS = "collective,min_bytes,max_bytes,algorithm,protocol,channels,num_ranks,num_nodes"
MAX_RULES = 256
MAX_LINE_BYTES = 255
MAX_FILE_BYTES = 256 * 1024
MAX_CHANNELS = 64
"""MAXCHANNELS of NCCL 2.25 and later (src/include/device.h)."""
MAX_BYTES = 2**64 - 1
_MAX_INT = 2**31 - 1
_MAX_SHOWN = 24
_BLANKS = b" \t\r"
_DIGITS = re.compile(rb"[0-9]+")


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One rule, both ends of its size range included. None: any, or for the channels NCCL's own count."""

    collective: str
    min_bytes: int
    max_bytes: int
    algo: str
    proto: str
    num_channels: int | None = None
    num_ranks: int | None = None
    num_nodes: int | None = None

    def line(self) -> str:
        """Return the rule as a line of the file."""
        top = "*" if self.max_bytes == MAX_BYTES else self.max_bytes
        optional = ("*" if value is None else value for value in (self.num_channels, self.num_ranks, self.num_nodes))
        return ",".join(map(str, (self.collective, self.min_bytes, top, self.algo, self.proto, *optional)))


class PolicyError(InputError):
    """A policy that the plugin refuses; ``line`` is 0 where the whole file is at fault."""

    def __init__(self, line: int, message: str) -> None:
        self.line = line
        self.message = message
        text = f"line {line}: {message}" if line else message
        super().__init__("not a readable tuner policy", text, "correct the file, or write it again with nccltune emit")
        self.text = text


def write_policy(rules: Iterable[PolicyRule], comments: Iterable[str] = ()) -> str:
    """Return the file: version, comments (without their #), rules; raises PolicyError where the plugin would refuse it."""
    lines = [VERSION_LINE]
    for comment in comments:
        lines += _comment(comment)
    text = "\n".join([*lines, f"# {COLUMNS}", *(rule.line() for rule in rules)]) + "\n"
    parse_policy(text)
    return text


def parse_policy(text: str | bytes) -> list[PolicyRule]:
    """Return the rules in order; raises PolicyError, an InputError, for a file that the plugin refuses as a whole."""
    raw = text.encode("utf-8", errors="surrogateescape") if isinstance(text, str) else text
    if not raw:
        raise PolicyError(0, "the file is empty")
    if len(raw) > MAX_FILE_BYTES:
        raise PolicyError(0, f"larger than {MAX_FILE_BYTES} bytes")
    lines = raw.removesuffix(b"\n").split(b"\n")
    rules: list[PolicyRule] = []
    for number, line in enumerate(lines, 1):
        rule = _read_line(number, line)
        if rule is not None:
            if len(rules) == MAX_RULES:
                raise PolicyError(number, f"more than {MAX_RULES} rules")
            rules.append(rule)
    return rules


def _comment(text: str) -> list[str]:
    """One or more comment lines of plain ASCII that fit the plugin's line length."""
    plain = "".join(c if " " <= c <= "~" else "?" for c in text)
    width = MAX_LINE_BYTES - len("#   ")
    lines = []
    while len(plain) > width:
        cut = plain.rfind(" ", 1, width)
        cut = cut if cut > 0 else width
        lines.append(plain[:cut])
        plain = "  " + plain[cut:].lstrip()
    return [f"# {line}".rstrip() for line in (*lines, plain)]


def _read_line(number: int, line: bytes) -> PolicyRule | None:
    if len(line) > MAX_LINE_BYTES:
        raise PolicyError(number, f"longer than {MAX_LINE_BYTES} bytes")
    if b"\0" in line:
        raise PolicyError(number, "holds a zero byte")
    line = line.strip(_BLANKS)
    if number == 1:
        if line != VERSION_LINE.encode():
            raise PolicyError(number, f"is not '{VERSION_LINE}'")
        return None
    return None if not line or line.startswith(b"#") else _read_rule(number, line)


def _read_rule(number: int, line: bytes) -> PolicyRule:
    fields = [field.strip(_BLANKS) for field in line.split(b",")]
    if len(fields) != 8:
        raise PolicyError(number, f"{len(fields)} fields instead of 8")
    collective = _name(number, fields[0], "collective", COLLECTIVES)
    low = _number(number, fields[1], "min_bytes", 0, MAX_BYTES)
    high = MAX_BYTES if fields[2] == b"*" else _number(number, fields[2], "max_bytes", 0, MAX_BYTES)
    if low > high:
        raise PolicyError(number, "min_bytes is above max_bytes")
    return PolicyRule(
        collective,
        low,
        high,
        _name(number, fields[3], "algorithm", ALGOS),
        _name(number, fields[4], "protocol", PROTOS),
        _or_star(number, fields[5], "channels", 0, MAX_CHANNELS) or None,
        _or_star(number, fields[6], "num_ranks", 1, _MAX_INT),
        _or_star(number, fields[7], "num_nodes", 1, _MAX_INT),
    )


def _name(number: int, field: bytes, what: str, names: tuple[str, ...]) -> str:
    for name in names:
        if field.lower() == name.lower().encode():
            return name
    raise PolicyError(number, f"unknown {what} '{_shown(field)}'")


def _number(number: int, field: bytes, what: str, least: int, most: int) -> int:
    if not _DIGITS.fullmatch(field) or not least <= int(field) <= most:
        raise PolicyError(number, f"bad {what} '{_shown(field)}'")
    return int(field)


def _or_star(number: int, field: bytes, what: str, least: int, most: int) -> int | None:
    return None if field == b"*" else _number(number, field, what, least, most)


def _shown(field: bytes) -> str:
    return "".join(chr(c) if 0x20 <= c <= 0x7E else "?" for c in field[:_MAX_SHOWN])
