"""What every file and every number shares: the value with interval and source, and the header of a written file."""

import datetime
import sys
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from nccltune import __version__
from nccltune.errors import InputError

Source = Literal["measured", "interpolated", "extrapolated", "analytic", "assumed"]
# From strongest to weakest: a sum is as good as its weakest part.
SOURCES: tuple[Source, ...] = ("measured", "interpolated", "extrapolated", "analytic", "assumed")


class Strict(BaseModel):
    """Base of every record: unknown keys are an error, so a typo in a file is found when it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Value(Strict):
    """A number with its 90% interval and where it came from."""

    value: float
    low: float
    high: float
    source: Source

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not (self.low <= self.value <= self.high):
            raise ValueError(f"interval [{self.low}, {self.high}] does not hold the value {self.value}")
        return self


def weakest(*sources: Source) -> Source:
    """Return the weakest of the given sources."""
    return max(sources, key=SOURCES.index)


def first_problem(error: ValidationError, whole: str = "file") -> str:
    """Say what is wrong and where: the path of the first bad field (or ``whole``) and pydantic's reason."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {first['msg']}"


def header(schema: str, version: int) -> dict[str, Any]:
    """Return the header fields of a file written now, to be merged into the document (``schema`` first)."""
    return {
        "schema": schema,
        "schema_version": version,
        "nccltune_version": __version__,
        "created_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command_line(),
    }


def command_line() -> list[str]:
    """Return the command that is running, without the folder of the executable (it says nothing to others)."""
    argv = list(sys.argv) or ["python"]
    return [argv[0].rsplit("/", 1)[-1], *argv[1:]]


def check_header(document: object, schema: str, version: int, where: str) -> dict[str, Any]:
    """Return ``document`` as a dictionary if it is ``schema`` at ``version``; raise InputError with advice if not."""
    if not isinstance(document, dict) or document.get("schema") != schema:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise InputError(
            f"{where} is not a {schema} file", f"its schema is {found!r}", "give the file that nccltune wrote"
        )
    found_version = document.get("schema_version")
    if found_version != version:
        newer = isinstance(found_version, int) and found_version > version
        raise InputError(
            f"{where} has {schema} version {found_version!r}, this nccltune reads version {version}",
            "the file was written by another version",
            "update nccltune" if newer else "make the file again with this version",
        )
    return document
