"""Read engine points: a CSV with a header (columns by name, any order), a stored validation (its measured arms), or
``decode:1:11.26`` on the command line.
"""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from nccltune.errors import InputError
from nccltune.knobs import find_setting
from nccltune.parse.bounded import read_bounded
from nccltune.schemas import validation
from nccltune.schemas.common import check_header, first_problem
from nccltune.schemas.points import PHASES, Point
from nccltune.schemas.setting import BASE, Setting

_NEEDED = ("phase", "batch_size", "time_ms")
_OPTIONAL = ("draft_tokens", "context_tokens", "accept_length", "setting", "engine", "use", "source")
_NUMBERS = ("batch_size", "time_ms", "draft_tokens", "context_tokens", "accept_length")
_MAX_BYTES = 32 * 1024 * 1024
_VALIDATION_FILE = "validation.json"


def read_points(path: Path, known: Mapping[str, Setting] | None = None) -> list[Point]:
    """Read a points file, or a validation (its ``validation.json`` or folder); every error names line and column.

    ``known``: settings by name.
    """
    if path.is_dir() and (path / _VALIDATION_FILE).is_file():
        path = path / _VALIDATION_FILE
    try:
        data = read_bounded(path, _MAX_BYTES)
        if data is None:
            raise InputError(f"{path} is larger than 32 MiB", "a points file has one line per measured time", "check the file")  # fmt: skip
        text = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", "", "check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}", str(error), "give a UTF-8 CSV file") from error
    if text.lstrip().startswith("{"):
        return _validation_points(text, str(path))
    return parse_points(text, str(path), known)


def _validation_points(text: str, where: str) -> list[Point]:
    """Measured arms of a stored validation; those it was calibrated on keep that use, so that they are never scored."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON", str(error), "the file may be cut off: make it again") from error
    document = check_header(document, validation.SCHEMA, validation.SCHEMA_VERSION, where)
    try:
        found = validation.Validation.model_validate({k: v for k, v in document.items() if k != "schema"})
    except ValidationError as error:
        raise InputError(f"{where} is not a valid validation", first_problem(error), "make the file again") from None  # fmt: skip
    measured: list[validation.Arm | validation.NotPredictable] = [*found.arms, *found.not_predictable]
    try:
        arms = [_measured_point(arm) for arm in measured]
    except ValidationError as error:
        raise InputError(f"{where} holds an arm that is no point", first_problem(error), "make the file again") from None  # fmt: skip
    if not arms:
        raise InputError(f"{where} has no measured arm", "", "resume the validation")
    return arms


def _measured_point(arm: validation.Arm | validation.NotPredictable) -> Point:
    return Point(
        phase=arm.phase, batch_size=arm.batch_size, draft_tokens=arm.draft_tokens, context_tokens=arm.context_tokens, time_ms=arm.measured.value,
        accept_length=arm.accept_length, setting=arm.setting, engine=arm.engine, source="validation",
        use="calibrate" if isinstance(arm, validation.Arm) and arm.used_for_calibration else "",
    )  # fmt: skip


def parse_points(text: str, where: str, known: Mapping[str, Setting] | None = None) -> list[Point]:
    """Read points from CSV text; lines that are empty (a spreadsheet leaves commas) or start with ``#`` are skipped."""
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip(" \t,") and not line.lstrip().startswith("#")]  # fmt: skip
    if not lines:
        raise InputError(f"{where} has no points", "it is empty", f"start it with {','.join(_NEEDED)}")
    if "\0" in text:
        raise InputError(f"{where} is not a CSV file", "it holds NUL bytes", "give a UTF-8 CSV file")
    header = [name.strip().lower() for name in _cells(lines[0][1])]
    _check_header(header, where, lines[0][0])
    points = [_point(dict(zip(header, _row(line, header, where, n), strict=True)), where, n, known) for n, line in lines[1:]]  # fmt: skip
    if not points:
        raise InputError(f"{where} has a header and no points", "", "add at least one line")
    return points


def parse_point(text: str, known: Mapping[str, Setting] | None = None) -> Point:
    """Read ``decode:1:11.26`` (phase, batch, ms), ``verify:1:3:18.67`` (draft tokens before ms), ``@setting`` after it."""
    body, _, setting = text.partition("@")
    parts = [part.strip() for part in body.split(":")]
    advice = "write decode:BATCH:MS or verify:BATCH:DRAFT_TOKENS:MS, with @SETTING behind it where it is not base"
    if len(parts) not in (3, 4):
        raise InputError(f"'{text}' is not a point", "it needs three or four parts", advice)
    row = {"phase": parts[0], "batch_size": parts[1], "time_ms": parts[-1], "setting": setting}
    if len(parts) == 4:
        row["draft_tokens"] = parts[2]
    try:
        return _point(row, "--point", 0, known)
    except InputError as error:
        why = error.why or error.what.removeprefix("--point:0").removeprefix(", ").removeprefix(": ")
        raise InputError(f"'{text}' is not a point", why, advice) from None


def _check_header(header: list[str], where: str, line: int) -> None:
    if len(header) == 1 and (mark := next((m for m in ";\t" if m in header[0]), None)):
        name = "semicolons" if mark == ";" else "tabs"
        raise InputError(f"{where}:{line}: the columns are split by {name}", "a points file is split by commas", "export it with commas, and with a point in decimal numbers")  # fmt: skip
    unknown = [name for name in header if name not in _NEEDED + _OPTIONAL]
    missing = [name for name in _NEEDED if name not in header]
    twice = sorted({name for name in header if header.count(name) > 1})
    if unknown or missing or twice:
        why = "; ".join(
            f"{word}: {', '.join(repr(n) for n in names)}"
            for word, names in (("unknown column", unknown), ("missing column", missing), ("given twice", twice))
            if names
        )
        raise InputError(f"{where}:{line} is not the header of a points file", why, f"columns are {', '.join(_NEEDED)} and optionally {', '.join(_OPTIONAL)}")  # fmt: skip


def _cells(line: str) -> list[str]:
    return next(csv.reader(io.StringIO(line)))


def _row(line: str, header: list[str], where: str, number: int) -> list[str]:
    cells = _cells(line)
    if len(cells) != len(header):
        raise InputError(f"{where}:{number} has {len(cells)} cells, the header has {len(header)}", "the line is cut or has a stray comma", "correct the line (quote a cell that holds a comma)")  # fmt: skip
    return cells


def _point(row: Mapping[str, str], where: str, number: int, known: Mapping[str, Setting] | None) -> Point:
    at = f"{where}:{number}"
    fields: dict[str, object] = {}
    for name, cell in row.items():
        value = cell.strip()
        if name == "setting":
            fields[name] = _setting(value, at, known)
        elif name == "phase" and value.lower() not in PHASES:
            raise InputError(f"{at}, column phase: '{value}' is not a phase", f"phases are {', '.join(PHASES)}", "correct the cell")  # fmt: skip
        elif name in ("phase", "use"):
            fields[name] = value.lower()
        elif value and name in _NUMBERS and ("_" in value or not value.isascii()):
            # Python would read 1_0 as 10; whoever wrote it meant 1.0, or another column.
            raise InputError(f"{at}, column {name}: '{value}' is not a number", "a number is digits with a point", "correct the cell")  # fmt: skip
        elif value:
            fields[name] = value
        elif name in _NEEDED:
            raise InputError(f"{at}, column {name}: empty", "", "fill it in")
    if fields["phase"] == "cycle" and _is_one(fields.get("draft_tokens")):
        fields["phase"] = "decode"  # without drafts, the cycle is the plain step
    try:
        return Point.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        column = str(first["loc"][0]) if first["loc"] else ""
        place = f"{at}, column {column}" if column else at
        raise InputError(f"{place}: {first['msg'].removeprefix('Value error, ')}", f"the value is '{row.get(column, '')}'" if column in row else "", "correct the cell") from None  # fmt: skip


def _is_one(cell: object) -> bool:
    """Whether a draft-token cell says 1; an absent one says nothing."""
    return cell in ("1", "1.0")


def _setting(value: str, at: str, known: Mapping[str, Setting] | None) -> Setting:
    if not value:
        return BASE
    try:
        return find_setting(value, dict(known or {}))
    except InputError as error:
        raise InputError(f"{at}, column setting: {error.what}", error.why, error.do) from None
