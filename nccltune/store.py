"""Run folders and JSON files: create, append, load, resume. The only module that opens result files."""

import contextlib
import errno
import gc
import gzip
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from nccltune import run_lock
from nccltune.errors import InputError, NccltuneError
from nccltune.methods import NCCL
from nccltune.outputs import FIT, MANIFEST, MEASUREMENTS
from nccltune.schemas import fit as fit_schema
from nccltune.schemas import measurement as measurement_schema
from nccltune.schemas import run as run_schema
from nccltune.schemas.common import check_header, first_problem
from nccltune.schemas.fit import Fit
from nccltune.schemas.measurement import Measurement
from nccltune.schemas.run import Manifest

SYNC_EVERY_S = 1.0

# How every line of measurements.jsonl begins. What begins like this and is no JSON was cut by a crash.
_HEADER = {"schema": measurement_schema.SCHEMA, "schema_version": measurement_schema.SCHEMA_VERSION}
_LINE_START = json.dumps(_HEADER)[:-1].encode() + b", "
_CUT_START = f'{{"schema": "{measurement_schema.SCHEMA}"'.encode()
_BOM = b"\xef\xbb\xbf"

M = TypeVar("M", bound=BaseModel)


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write one JSON document; a crash leaves the old file or the new one, never half of each."""
    try:
        text = json.dumps(document, indent=1, ensure_ascii=True, allow_nan=False)
    except ValueError as error:
        raise NccltuneError(f"{path} was not written", f"a number in it is not finite: {error}", "this is a bug in nccltune: please report it with the command") from error  # fmt: skip
    write_text(path, text + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a whole file through a temporary one; raises NccltuneError.

    Links are followed, and what is no regular file (/dev/null, a pipe) is written to: putting a file in its place
    would destroy it.
    """
    temporary = path.with_name(f".nccltune.{os.getpid()}.tmp")
    try:
        target = Path(os.path.realpath(path))
        temporary = target.with_name(temporary.name)
        is_special = path.exists() and not path.is_file()
        with (path if is_special else temporary).open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            if not is_special:
                os.fsync(file.fileno())
        if not is_special:
            temporary.replace(target)
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise NccltuneError(f"cannot write {path}", why, _advice(error)) from error


def _advice(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "free some space"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "make the folder writable, or use a copy of it"
    return "check the path"


def read_json(path: Path) -> Any:
    """Read one JSON document; raises InputError naming the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", "", "check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}", str(error), "check the path and its permissions") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON", str(error), "the file may be cut off: make it again") from error


def load_document(path: Path, model: type[M], schema: str, version: int) -> M:
    """Read a versioned document into its model; raises InputError naming the field that is wrong."""
    document = check_header(read_json(path), schema, version, str(path))
    document = {key: value for key, value in document.items() if key != "schema"}
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise InputError(f"{path} is not a valid {schema} file", first_problem(error), "make the file again") from error


class Run:
    """One run folder: ``manifest.json`` and the append-only ``measurements.jsonl``."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._synced_at = -SYNC_EVERY_S
        self.num_cut_lines = 0
        """Lines that the last ``measurements()`` left out because a crash had cut them."""

    @classmethod
    def create(cls, path: Path, manifest: Manifest) -> "Run":
        """Make the folder; an existing run is never overwritten (InputError)."""
        try:
            if (path / MANIFEST).exists() or (path / MEASUREMENTS).exists():
                raise InputError(
                    f"{path} already holds a run", "runs are never overwritten", f"use --resume {path}, or another -o"
                )
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NccltuneError(
                f"cannot make the run folder {path}", error.strerror or str(error), "choose another place with -o"
            ) from error
        run = cls(path, manifest)
        run.save()
        return run

    @classmethod
    def load(cls, path: Path) -> "Run":
        """Open an existing run folder (or the path of its manifest)."""
        folder = path.parent if path.name == MANIFEST else path
        try:
            why = "" if (folder / MANIFEST).is_file() else f"it has no {MANIFEST}"
        except OSError as error:
            why = error.strerror or str(error)
        if why:
            raise InputError(f"{path} is not a run folder", why, "give the folder that 'nccltune scan' wrote")
        return cls(folder, load_document(folder / MANIFEST, Manifest, run_schema.SCHEMA, run_schema.SCHEMA_VERSION))

    def save(self) -> None:
        """Write the manifest."""
        write_json(self.path / MANIFEST, {"schema": run_schema.SCHEMA, **self.manifest.model_dump(mode="json")})

    def update(self, **fields: Any) -> None:
        """Change manifest fields (status, finished_at, notes) and write it."""
        self.manifest = self.manifest.model_copy(update=fields)
        self.save()
        if self.manifest.status != "running":
            run_lock.release(self.path)

    def append(self, measurements: Iterable[Measurement]) -> None:
        """Append finished cases; a cut last line of an earlier crash is ended first.

        Every case is handed to the operating system at once, so that killing the program loses none; the disk is waited
        for once a second, because a case takes less time than that wait.
        """
        if (self.path / f"{MEASUREMENTS}.gz").exists():
            raise InputError(
                f"{self.path} is packed",
                f"{MEASUREMENTS}.gz is a finished run",
                f"unpack it first: gunzip {MEASUREMENTS}.gz",
            )
        run_lock.take(self.path)
        path = self.path / MEASUREMENTS
        lines = "".join(
            json.dumps({**_HEADER, **m.model_dump(mode="json", exclude_defaults=True)})
            + "\n"
            for m in measurements
        )  # fmt: skip
        try:
            with path.open("ab") as file:
                if file.tell() and not _ends_with_newline(path):
                    file.write(b"\n")
                file.write(lines.encode())
                file.flush()
                if time.monotonic() - self._synced_at >= SYNC_EVERY_S:
                    os.fsync(file.fileno())
                    self._synced_at = time.monotonic()
        except OSError as error:
            raise NccltuneError(
                f"cannot append to {path}",
                error.strerror or str(error),
                f"free some space, then run: nccltune scan --resume {self.path}",
            ) from error

    def measurements(self) -> list[Measurement]:
        """Load the measurements of NCCL settings; what was measured beside NCCL is left out."""
        return [m for m in self.all_measurements() if m.method == NCCL]

    def all_measurements(self) -> list[Measurement]:
        """Load every measurement; later lines of the same case win.

        A line cut by a crash is left out and counted (its case is measured again on resume); any other line that is no
        measurement of this schema and version raises InputError. 100,000 lines take about 2 s (benchmarks/run_load.py).
        """
        path = self.path / MEASUREMENTS
        if not path.exists() and (self.path / f"{MEASUREMENTS}.gz").exists():
            path = self.path / f"{MEASUREMENTS}.gz"  # a finished run that was packed, as those under reports/
        found: dict[str, Measurement] = {}
        self.num_cut_lines = 0
        try:
            with _open(path) as file, _collector_paused():
                for number, line in enumerate(file, 1):
                    measurement = self._parse(line, number)
                    if measurement is not None:
                        found[measurement.case_id] = measurement
        except FileNotFoundError:
            return []
        except (OSError, EOFError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise InputError(f"cannot read {path}", why, "check the path and its permissions") from error
        return list(found.values())

    def _parse(self, line: bytes, number: int) -> Measurement | None:
        if line.startswith(_LINE_START):
            # Text to record in one validated step; what does not pass is looked at closely below.
            try:
                return Measurement.model_validate_json(b"{" + line[len(_LINE_START) :])
            except ValidationError:
                pass
        line = (line.removeprefix(_BOM) if number == 1 else line).strip(b" \t\r\n\0")
        if not line:
            return None
        where = f"{self.path / MEASUREMENTS}:{number}"
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            if line.startswith(_CUT_START) or _CUT_START.startswith(line):
                self.num_cut_lines += 1
                return None
            raise InputError(
                f"{where} is not a measurement", f"it is not JSON: {error}", "remove that line and resume the run"
            ) from error
        document = check_header(document, measurement_schema.SCHEMA, measurement_schema.SCHEMA_VERSION, where)
        fields = {key: value for key, value in document.items() if key not in ("schema", "schema_version")}
        try:
            return Measurement.model_validate(fields)
        except ValidationError as error:
            raise InputError(
                f"{where} is not a valid measurement",
                first_problem(error),
                "remove that line and resume the run",
            ) from error

    def save_fit(self, fit: Fit) -> Path:
        """Write the fit beside the measurements."""
        path = self.path / FIT
        write_json(path, {"schema": fit_schema.SCHEMA, **fit.model_dump(mode="json")})
        return path

    def load_fit(self) -> Fit | None:
        """Load the fit, or None when this run has none yet."""
        path = self.path / FIT
        return load_document(path, Fit, fit_schema.SCHEMA, fit_schema.SCHEMA_VERSION) if path.is_file() else None


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the cyclic garbage collector: records hold no cycles, and it would walk all of them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
