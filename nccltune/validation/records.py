"""The folder of a live validation: the request, one line per server and arm as they finish, and the comparison."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nccltune.errors import InputError, NccltuneError
from nccltune.schemas.common import check_header, first_problem, header
from nccltune.schemas.validation import SCHEMA as VALIDATION_SCHEMA
from nccltune.schemas.validation import Validation
from nccltune.schemas.validation_record import SCHEMA, SCHEMA_VERSION, ArmRecord, ServerRecord
from nccltune.store import load_document, write_json
from nccltune.validation import request as request_schema
from nccltune.validation.request import LiveRequest

REQUEST, RECORDS, VALIDATION = "request.json", "records.jsonl", "validation.json"
Record = ServerRecord | ArmRecord
_RECORD: TypeAdapter[Record] = TypeAdapter(Record)


class Folder:
    """Where a live validation keeps everything."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, request: LiveRequest) -> "Folder":
        """Make the folder; one that holds a validation already is never overwritten."""
        if (path / REQUEST).exists() or (path / RECORDS).exists():
            raise InputError(f"{path} already holds a validation", "it is never overwritten", f"use --resume {path}, or another -o")  # fmt: skip
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NccltuneError(f"cannot make {path}", error.strerror or str(error), "choose another place with -o") from error  # fmt: skip
        head = header(request_schema.SCHEMA, request_schema.SCHEMA_VERSION)
        write_json(path / REQUEST, {**head, "request": request.model_dump(mode="json")})
        return cls(path)

    @classmethod
    def load(cls, path: Path) -> tuple["Folder", LiveRequest]:
        """Open an existing folder with its request."""
        if not (path / REQUEST).is_file():
            raise InputError(f"{path} holds no validation", f"it has no {REQUEST}", "give the folder that 'nccltune validate sglang' wrote")  # fmt: skip
        from nccltune.store import read_json

        where = str(path / REQUEST)
        document = check_header(read_json(path / REQUEST), request_schema.SCHEMA, request_schema.SCHEMA_VERSION, where)
        try:
            return cls(path), LiveRequest.model_validate(document.get("request"))
        except ValidationError as error:
            raise InputError(f"{where} is not valid", first_problem(error), "start again with another -o") from error  # fmt: skip

    def append(self, record: Record) -> None:
        """Append one record and flush it to disk."""
        line = json.dumps({"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **record.model_dump(mode="json")})
        try:
            with (self.path / RECORDS).open("a", encoding="utf-8") as file:
                file.write(line + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise NccltuneError(f"cannot append to {self.path / RECORDS}", error.strerror or str(error), f"free some space, then use --resume {self.path}") from error  # fmt: skip

    def records(self) -> list[Record]:
        """Load every record; a line cut by a crash is left out (its arm is measured again)."""
        path = self.path / RECORDS
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(f"cannot read {path}", error.strerror or str(error), "check its permissions") from error
        return [record for n, line in enumerate(lines, 1) if (record := _record(line, f"{path}:{n}")) is not None]

    def arms(self) -> dict[str, ArmRecord]:
        """The last record of every arm; one that worked is not replaced by a later failure."""
        found: dict[str, ArmRecord] = {}
        for record in self.records():
            if isinstance(record, ArmRecord) and (record.status == "ok" or found.get(record.arm_id) is None or found[record.arm_id].status != "ok"):  # fmt: skip
                found[record.arm_id] = record
        return found

    def servers(self) -> list[ServerRecord]:
        """Every server, in order."""
        return [record for record in self.records() if isinstance(record, ServerRecord)]

    def save(self, validation: Validation) -> Path:
        """Write the comparison."""
        path = self.path / VALIDATION
        write_json(path, {"schema": VALIDATION_SCHEMA, **validation.model_dump(mode="json")})
        return path


def load_validation(path: Path) -> Validation:
    """Load a stored comparison: the file, or its folder."""
    from nccltune.schemas.validation import SCHEMA_VERSION as VERSION

    return load_document(path / VALIDATION if path.is_dir() else path, Validation, VALIDATION_SCHEMA, VERSION)


def done_ids(arms: Sequence[ArmRecord] | dict[str, ArmRecord]) -> set[str]:
    """Ids of the arms that need not be measured again."""
    values = arms.values() if isinstance(arms, dict) else arms
    return {arm.arm_id for arm in values if arm.status == "ok"}


def _record(line: str, where: str) -> Record | None:
    if not line.strip():
        return None
    try:
        document: Any = json.loads(line)
    except ValueError:
        return None
    document = check_header(document, SCHEMA, SCHEMA_VERSION, where)
    try:
        return _RECORD.validate_python({k: v for k, v in document.items() if k not in ("schema", "schema_version")})
    except ValidationError as error:
        raise InputError(f"{where} is not a valid record", first_problem(error), "remove that line and resume") from error  # fmt: skip
