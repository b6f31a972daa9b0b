"""``check``: read an env file as its consumer does and report what would surprise its writer. Changes and runs nothing."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nccltune.emit import formats
from nccltune.emit.detect import PLAIN, PLAIN_READERS, detect
from nccltune.emit.document import HOLDS, MARK, WRITTEN_FOR
from nccltune.emit.findings import Finding, Reading
from nccltune.emit.grammar import parse_version
from nccltune.emit.overrides import against_environment, against_process, conf_values
from nccltune.emit.value_lint import judge
from nccltune.errors import InputError
from nccltune.knobs import Version

SCHEMA = "nccltune.check"
SCHEMA_VERSION = 1
HIDDEN = "(hidden)"
_HEADER_CHARS = 8000
MAX_FILE_BYTES = 4 * 1024 * 1024
_MISREAD = ("quotes", "inline-comment", "no-expansion", "interpolated", "spaces")
# The same slip has other names in other readers; one report of it per line is enough.
_SAME = {
    "file-refused": "name",
    "dropped": "name",
    "interpolated": "dollar",
    "no-expansion": "dollar",
    "trailing-space": "spaces",
}
_SILENT_SPACES = ("docker", "nccl-conf")


@dataclass
class Report:
    """What was found in one file."""

    file: str
    format: str
    detected: bool
    variables: dict[str, str]
    findings: list[Finding] = field(default_factory=list)

    @property
    def num_problems(self) -> int:
        """Findings that change what runs."""
        return sum(1 for finding in self.findings if finding.level == "problem")

    def to_json(self) -> dict[str, Any]:
        """Return the report as one JSON document."""
        return {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "file": self.file,
            "format": self.format,
            "format_detected": self.detected,
            "variables": self.variables,
            "num_problems": self.num_problems,
            "findings": [finding.to_json() for finding in self.findings],
        }


def check_file(path: str, form: str = "auto", version: Version | None = None, pid: int | None = None,
               environ: Mapping[str, str] | None = None, conf: dict[str, str] | None = None) -> Report:  # fmt: skip
    """Lint one file; raises InputError when it cannot be read at all.

    ``environ`` and ``conf``: the environment and nccl.conf to compare with; None: this process's own.
    """
    text, raw = _text(path)
    version = version or written_for(text)
    chosen = detect(path, text) if form == "auto" else form
    reading = _read(chosen, text)
    said = reading.findings
    if _is_emitted(text):
        # A dollar stands there because one is meant; in a line that was added by hand it still deserves a look.
        said = [replace(f, level="warning") if f.code == "no-expansion" else f for f in said]
    findings = [*_bytes(raw, text, chosen), *said, *_missing(text, reading)]
    if not reading.entries and not findings:
        findings.append(_nothing(text, chosen))
    if chosen not in (*formats.RULE_NAMES, "sglang-args"):
        # A value that its reader already takes wrongly is complained about once, not again for what it became.
        misread = {f.line for f in reading.findings if f.code in _MISREAD}
        findings += [
            *_duplicates(reading),
            *(f for f in judge(reading, version) if f.line is None or f.line not in misread),
        ]
        here = dict(os.environ) if environ is None else dict(environ)
        findings += against_environment(reading, chosen, here, conf_values(here) if conf is None else conf)
        if pid is not None:
            findings += against_process(reading, pid)
    elif pid is not None:
        raise InputError(f"a {chosen} file holds no variables to compare with a process", "", "leave out --running")
    findings = [_redacted(finding, reading) for finding in findings]
    ordered = sorted(findings, key=lambda f: (f.line or 10**9, f.level))
    return Report(path, chosen, form == "auto", _shown(reading, chosen), ordered)


def _nothing(text: str, form: str) -> Finding:
    """An empty file is one thing, a file of another kind is another: its reader would set nothing of what is in it."""
    content = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not content or _is_emitted(text):
        return Finding("warning", "nothing", "the file sets no variable")
    what = "option" if form == "sglang-args" else "variable"
    return Finding("problem", "nothing", f"read as {form}, none of its lines sets a{'n' if what == 'option' else ''} {what}", "is it of another format? See --format")  # fmt: skip


def _shown(reading: Reading, form: str) -> dict[str, str]:
    """The values to report: other programs' variables may hold secrets, so only their names leave the file."""
    if form in (*formats.RULE_NAMES, "sglang-args"):
        return reading.values()
    return {name: value if name.startswith("NCCL_") else HIDDEN for name, value in reading.values().items()}


def _redacted(finding: Finding, reading: Reading) -> Finding:
    """The finding without the value of a variable that is not NCCL's."""
    if finding.variable is None or finding.variable.startswith("NCCL_"):
        return finding
    message, advice = finding.message, finding.advice
    for entry in reading.entries:
        if entry.name == finding.variable and entry.value:
            for secret in (entry.value, entry.value.strip("\"' ")):
                message, advice = (text.replace(secret, HIDDEN) if secret else text for text in (message, advice))
    return replace(finding, message=message, advice=advice)


def _is_emitted(text: str) -> bool:
    """Whether the file was written by ``emit``."""
    return MARK in text[:_HEADER_CHARS]


def written_for(text: str) -> Version | None:
    """NCCL version that a file of ours names in its header, None for other files."""
    match = re.search(rf"{WRITTEN_FOR}(\d+\.\d+\.\d+)", text[:_HEADER_CHARS]) if _is_emitted(text) else None
    return parse_version(match.group(1)) if match else None


def _text(path: str) -> tuple[str, bytes]:
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot read {path}", reason, "check the path and its permissions") from error
    if len(raw) > MAX_FILE_BYTES:
        raise InputError(
            f"{path} is no env file", f"it is larger than {MAX_FILE_BYTES // 1024 // 1024} MiB", "give an env file"
        )
    if b"\0" in raw:
        hint = "it looks like UTF-16: save it as UTF-8" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "give a text file"
        raise InputError(f"{path} is no text file", "it holds zero bytes", hint)
    try:
        return raw.decode("utf-8"), raw
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path} is not UTF-8", f"line {line} holds the byte 0x{raw[error.start]:02x}", "save it as UTF-8"
        ) from error


def _read(form: str, text: str) -> Reading:
    if form != PLAIN:
        module = formats.get(form)
        # Line ends and the byte order mark are judged on their own; left in, they would hide every other finding.
        reading: Reading = module.read(text.removeprefix("\ufeff").replace("\r\n", "\n"))
        return reading
    return _read_plain(text.removeprefix("\ufeff").replace("\r\n", "\n"))


def _read_plain(text: str) -> Reading:
    """Read as every possible consumer; report where one of them would read something else than the others."""
    readings = {name: formats.get(name).read(text) for name in PLAIN_READERS}
    result = Reading(entries=list(readings["compose"].entries or readings["systemd"].entries))
    seen: set[tuple[int | None, str]] = set()
    for name, reading in readings.items():
        for finding in reading.findings:
            kind = _SAME.get(finding.code, finding.code)
            if (finding.line, kind) not in seen:
                seen.add((finding.line, kind))
                message = (
                    finding.message
                    if name.split("-")[0] in finding.message.lower()
                    else f"for {name}: {finding.message}"
                )
                result.findings.append(
                    Finding(finding.level, finding.code, message, finding.advice, finding.line, finding.variable)
                )
    return result


def _bytes(raw: bytes, text: str, form: str) -> list[Finding]:
    found = []
    if raw.startswith(b"\xef\xbb\xbf"):
        found.append(
            Finding(
                "problem",
                "bom",
                "the file starts with a byte order mark, which spoils the first line",
                "save as UTF-8 without BOM",
                1,
            )
        )
    if b"\r\n" in raw:
        line = raw[: raw.index(b"\r\n")].count(b"\n") + 1
        found.append(
            Finding(
                "problem",
                "crlf",
                "Windows line ends: the carriage return becomes part of the values",
                "convert it: sed -i 's/\\r$//' FILE",
                line,
            )
        )
    if text and not text.endswith("\n"):
        found.append(
            Finding(
                "warning",
                "no-newline",
                "the last line has no line end: a line appended later joins it",
                "end the file with a newline",
                text.count("\n") + 1,
            )
        )
    for number, content in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        bare = content.rstrip(" \t")
        if bare != content and "=" in bare and not bare.lstrip().startswith("#") and form not in _SILENT_SPACES:
            found.append(
                Finding(
                    "warning",
                    "trailing-space",
                    "spaces at the end of the line: docker and NCCL take them for a part of the value",
                    "remove them",
                    number,
                )
            )
        if bare.endswith("\\") and form not in ("shell", "slurm", "sglang-args", "json", "k8s"):
            found.append(
                Finding(
                    "problem",
                    "trailing-backslash",
                    "a backslash at the end: some readers join the next line to this one",
                    "remove it",
                    number,
                )
            )
    return found


def _missing(text: str, reading: Reading) -> list[Finding]:
    """A file of ours that holds less than its header says was cut, by a full disk or a copy that broke off."""
    match = re.search(rf"{HOLDS}(\d+) (variables|rules)", text[:_HEADER_CHARS]) if _is_emitted(text) else None
    if match is None or len(reading.entries) >= int(match[1]) or any(f.code == "unreadable" for f in reading.findings):
        return []
    message = f"its header says that it holds {match[1]} {match[2]}, {len(reading.entries)} can be read: it was cut"
    return [Finding("problem", "cut", message, "make it again; where a line was removed on purpose, correct 'holds:'")]


def _duplicates(reading: Reading) -> list[Finding]:
    found = []
    lines: dict[str, list[int]] = {}
    for entry in reading.entries:
        lines.setdefault(entry.name, []).append(entry.line)
    values = reading.values()
    for name, numbers in lines.items():
        if len(numbers) > 1:
            which = "first" if reading.first_wins else "last"
            message = f"{name} is set {len(numbers)} times (lines {', '.join(map(str, numbers))}): the {which} counts, {values[name]}"
            found.append(Finding("problem", "duplicate", message, "keep one", numbers[-1], name))
    return found
