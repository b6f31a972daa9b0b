"""``import``: tell what kind of text a file holds and read it into the record of that kind."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from nccltune.errors import InputError
from nccltune.parse.bounded import read_bounded
from nccltune.parse.engine_log import parse_engine_log
from nccltune.parse.nccl_log import parse_nccl_log
from nccltune.parse.nccl_tests import parse_nccl_tests, to_json
from nccltune.parse.nccl_tests_lines import clean_text, strip_prefix
from nccltune.parse.topo import parse_topo

Kind = Literal["nccl-tests", "nccl-log", "topo", "engine-log"]
KINDS: tuple[Kind, ...] = get_args(Kind)

SCHEMA = "nccltune.import"
SCHEMA_VERSION = 1

_MAX_BYTES = 1 << 30
# In this order: a report may hold NCCL's log, and so may an engine's log.
_SIGNS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (
        "nccl-tests",
        re.compile(
            r"nThread\s+\d+\s+nGpus\s+\d+\s+minBytes|Out of bounds values\s*:|Collective test starting|nccl-tests version"
            r"|\bsize\s+count\s+type\b|Test (?:NCCL|CUDA) failure|Avg bus bandwidth"
            r"|^\W*\d+\s+\d+\s+(?:float|half|bfloat16|double|u?int\d+)\s+\w+\s+(?:-?\d+\s+)?[\d.]+\s+[\d.]+\s+[\d.]+\s",
            re.MULTILINE,
        ),
    ),
    (
        "engine-log",
        re.compile(
            r"(?:Decode|Prefill) batch|SpecDecoding metrics|Speculative metrics|Serving Benchmark Result|^(?:sglang|vllm):\w+"
            r"|Custom all-?reduce is disabled|The server is fired up|server_args=ServerArgs|Avg generation throughput"
            r"|#retracted_req|\"(?:output_throughput|accept_length|internal_states|spec_accept_length)\"",
            re.MULTILINE | re.IGNORECASE,
        ),
    ),
    ("topo", re.compile(r"^\W*(?:\x1b\[[\d;]*m|\s)*GPU0(?:\x1b\[[\d;]*m|\s)+(?:GPU1|X\b|CPU|NIC0|mlx)", re.MULTILINE)),
    ("nccl-log", re.compile(r"NCCL (?:INFO|WARN|TRACE) |no algorithm/protocol available")),
)
_JSON_REPORT = re.compile(r'^\s*[\[{].*?"(?:config|nccl_version)"\s*:', re.DOTALL)
_SAID = "none of nccl-tests, nccl-log, topo and engine-log"


@dataclass(frozen=True, slots=True)
class Imported:
    """One file, read. ``document`` is what ``import --json`` prints."""

    kind: Kind
    document: dict[str, Any]
    usable: bool
    """False: it was read, but nothing in it may be used (wrong results, a failure, one rank only)."""
    why_not: str = ""


def import_file(path: Path, kind: str = "auto") -> Imported:
    """Read ``path`` as ``kind`` (``auto``: by its content); raises InputError where it cannot be read as that."""
    return import_text(read_text(path), kind, str(path))


def import_text(text: str, kind: str = "auto", where: str = "the text") -> Imported:
    """Read a text as ``kind``; raises InputError where nothing in it fits."""
    if not text.strip("\ufeff \t\r\n\0"):
        raise InputError(f"{where} is empty", "", "give a file with a report or a log in it")
    if kind not in ("auto", *KINDS):
        raise InputError(f"there is no kind '{kind}'", f"kinds are {', '.join(KINDS)}", "correct --kind")
    first = _read_as(text, kind)
    if first is None or not first.usable:
        # Not every reader knows what launchers and log collectors put in front of a line: once more without it.
        bare = "\n".join(strip_prefix(line).removeprefix(" ") for line in clean_text(text).split("\n"))
        again = _read_as(bare, kind)
        if again is not None and (again.usable or first is None):
            return again
    if first is not None:
        return first
    seen = detect_kind(text)
    if kind == "auto" and seen is None:
        raise InputError(f"{where} cannot be read", f"its content is {_SAID}", f"name it with --kind {'|'.join(KINDS)}")
    tried = seen if kind == "auto" else kind
    hint = f"it looks like {seen}" if seen not in (None, tried) else "no line of that kind was found"
    raise InputError(f"{where} is not {tried}", hint, "leave --kind out, or name the right one")


def _read_as(text: str, kind: str) -> Imported | None:
    """Read a text as ``kind`` (``auto``: by its content); None where nothing in it fits."""
    readers = {"nccl-tests": _nccl_tests, "nccl-log": _nccl_log, "topo": _topo, "engine-log": _engine_log}
    found = detect_kind(text) if kind == "auto" else kind
    return readers[found](text) if found is not None else None


def detect_kind(text: str) -> Kind | None:
    """Tell the kind of a text by its content; None where nothing fits."""
    text = text.removeprefix("\ufeff")
    if _JSON_REPORT.match(text[:200_000]):
        return "nccl-tests"
    return next((kind for kind, sign in _SIGNS if sign.search(text)), None)


def read_text(path: Path) -> str:
    """Read a file of unknown encoding: UTF-16 by its mark, otherwise UTF-8 with what is not UTF-8 replaced."""
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder", "", "give a file")
        data = read_bounded(path, _MAX_BYTES)
        if data is None:
            raise InputError(f"{path} is larger than 1 GiB", "", "cut out the part that matters")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", "", "check the path") from None
    except OSError as error:
        raise InputError(f"cannot read {path}", error.strerror or str(error), "check its permissions") from error
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    return data.decode(encoding, errors="replace")


def _nccl_tests(text: str) -> Imported | None:
    runs = parse_nccl_tests(text)
    if not runs:
        return None
    reasons = [run.error.message if run.error else run.status for run in runs]
    return Imported("nccl-tests", to_json(runs), any(run.usable for run in runs), "; ".join(dict.fromkeys(reasons)))


def _nccl_log(text: str) -> Imported | None:
    log = parse_nccl_log(text)
    if log.is_empty and not re.search(r"NCCL (?:INFO|WARN|TRACE) ", text):
        return None
    is_usable = log.error is None or bool(log.choices or log.model_table)
    return Imported("nccl-log", log.to_json(), is_usable, log.error.message if log.error else "")


def _topo(text: str) -> Imported | None:
    matrix = parse_topo(text)
    document = matrix.to_json()
    return Imported(
        "topo", document, bool(document["gpus"]) and "p2p_status" not in document, "; ".join(matrix.warnings)
    )


def _engine_log(text: str) -> Imported | None:
    log = parse_engine_log(text)
    if log.is_empty:
        return None
    is_usable = log.error is None or bool(log.decode_lines or log.accept_lengths)
    return Imported("engine-log", log.to_json(), is_usable, log.error.message if log.error else "")
