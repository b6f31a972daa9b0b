"""nccl-tests reports, text or JSON, as :class:`NcclTestsRun` records."""

from typing import Any

from nccltune.parse.nccl_tests_json import parse_json
from nccltune.parse.nccl_tests_report import NcclTestsRun, Row, Timing
from nccltune.parse.nccl_tests_text import parse_text

__all__ = ["NcclTestsRun", "Row", "Timing", "parse_nccl_tests", "to_json"]


def parse_nccl_tests(text: str) -> list[NcclTestsRun]:
    """Read every run in a report of nccl-tests 2.0 or later, text or -J; an empty list where there is none."""
    if text.removeprefix("\ufeff").lstrip()[:1] in ("{", "["):
        runs = parse_json(text)
        if runs:
            return runs
    return parse_text(text)


def to_json(runs: list[NcclTestsRun]) -> dict[str, Any]:
    """Return the document of ``import --json``."""
    return {"kind": "nccl-tests", "runs": [run.to_json() for run in runs]}
