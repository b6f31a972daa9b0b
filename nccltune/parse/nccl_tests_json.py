"""nccl-tests reports as JSON (-J, version 3). The whole environment is in such a file: only NCCL's own variables leave this module."""

import json
import math
import re
from typing import Any

from nccltune.parse.nccl_errors import classify_nccl_error
from nccltune.parse.nccl_tests_report import NcclTestsRun, Row, Timing, judge, ranks_from_bandwidth
from nccltune.parse.nccl_tests_settings import add_requested, is_setting
from nccltune.parse.numbers import number
from nccltune.schemas.measurement import Failure

_RESULTS = re.compile(r'"results"\s*:\s*\[')
_PERF = re.compile(r"(\w+?)_perf")
# printf writes nan, -nan and inf, which are no JSON in any spelling; Python's reader knows NaN.
_NOT_A_NUMBER = re.compile(r"([:\[,]\s*)-?(?:nan|inf|infinity)(?=\s*[,\]}])", re.IGNORECASE)
_DECODER = json.JSONDecoder()


def looks_like_report(document: object) -> bool:
    """Whether a JSON document is an nccl-tests report."""
    return isinstance(document, dict) and "config" in document and bool({"results", "nccl_version"} & document.keys())


def parse_json(text: str) -> list[NcclTestsRun]:
    """Read every report in ``text`` (one document, several in a row, or a list); a cut one gives its whole rows."""
    runs: list[NcclTestsRun] = []
    rest = text.removeprefix("\ufeff").strip()
    while rest:
        try:
            document, end = _DECODER.raw_decode(rest)
        except (ValueError, RecursionError):
            readable = _NOT_A_NUMBER.sub(r"\1NaN", rest)
            if readable != rest:
                rest = readable
                continue
            runs += [_run(document, is_cut=True) for document in _salvage(rest)]
            break
        documents = document if isinstance(document, list) else [document]
        runs += [_run(d, is_cut=False) for d in documents if looks_like_report(d)]
        rest = rest[end:].lstrip(" \t\r\n,")
    return runs


def nccl_version(number: object) -> str | None:
    """Spell NCCL's number: 22809 is 2.28.9; before 2.9 it was 2708 for 2.7.8."""
    if not isinstance(number, int) or number < 1000:
        return None
    if number >= 10000:
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return f"{number // 1000}.{number // 100 % 10}.{number % 100}"


def _run(document: dict[str, Any], *, is_cut: bool) -> NcclTestsRun:
    config = _dict(document.get("config"))
    run = NcclTestsRun(
        collective=_collective(document.get("args")),
        nccl_version=nccl_version(document.get("nccl_version")),
        graph_launches=config.get("graph") if isinstance(config.get("graph"), int) else None,
        is_started=True,
    )
    for entry in _list(document.get("results")):
        row = _row(entry)
        if row is not None:
            run.rows.append(row)
        else:
            run.num_unread_rows += 1
    entries = _list(document.get("results"))
    run.is_cpu_time = any("cpu_time" in _dict(_dict(e).get("out_of_place")) for e in entries)
    bounds = document.get("out_of_bounds")
    if isinstance(bounds, dict):
        run.num_out_of_bounds = _int(bounds.get("count")) or int(str(bounds.get("okay")).lower() == "false")
    run.is_finished = not is_cut and isinstance(bounds, dict)
    run.num_ranks = _ranks(run, config)
    add_requested(run, _environment(document.get("env")), "the report's environment", has_log=False)
    return judge(run, _failure(document, run))


def _failure(document: dict[str, Any], run: NcclTestsRun) -> Failure | None:
    """The report's own errors; a report without closing keys and without errors just ended."""
    said = [str(e).strip() for e in _list(document.get("errors")) if str(e).strip()]
    if said:
        text = "; ".join(dict.fromkeys(said))
        run.is_finished = False
        return classify_nccl_error(text) or Failure(kind="nccl", message=text[:400])
    if not run.is_finished and "end_time" in document:
        return Failure(kind="nccl", message="the program stopped before its closing lines; its error is on its stdout")
    return None


def _row(entry: object) -> Row | None:
    data = _dict(entry)
    size, count = _int(data.get("size")), _int(data.get("count"))
    if size is None:
        return None
    redop = str(data["redop"]).strip() if data.get("redop") else None
    return Row(
        size_bytes=size,
        count=count or 0,
        dtype=str(data.get("type", "")).strip(),
        redop=redop,
        out_of_place=_timing(data.get("out_of_place")),
        in_place=_timing(data.get("in_place")),
    )


def _timing(entry: object) -> Timing | None:
    data = _dict(entry)
    if not data:
        return None
    time = number(data.get("time", data.get("cpu_time")))
    wrong = data.get("nwrong")
    value = number(wrong)
    return Timing(
        time_us=time if time is not None else math.nan,
        algbw_gb_s=number(data.get("alg_bw")),
        busbw_gb_s=number(data.get("bus_bw")),
        # A count of wrong elements that is "nan" is no proof of right results.
        num_wrong=None if wrong is None else (int(value) if value is not None else 1),
    )


def _ranks(run: NcclTestsRun, config: dict[str, Any]) -> int | None:
    """Ranks: from the bandwidths where they are precise enough, otherwise processes x threads x GPUs.

    The device list of a single process names one device only, whatever -g was.
    """
    devices = [_dict(device) for device in _list(config.get("devices"))]
    processes = len({(d.get("hostname"), d.get("pid")) for d in devices}) or 1
    per_process = (_int(config.get("nthreads")) or 1) * (_int(config.get("ngpus")) or 0)
    configured = max(processes * per_process, len(devices), *[(_int(d.get("rank")) or 0) + 1 for d in devices], 0)
    measured = ranks_from_bandwidth(run)
    if measured is not None and configured and measured != configured:
        run.warnings.append(f"the bandwidths belong to {measured} ranks, the configuration says {configured}")
    return measured or configured or None


def _salvage(text: str) -> list[dict[str, Any]]:
    """Whole parts of a document that was cut off: its configuration and every complete row."""
    document: dict[str, Any] = {}
    for key in ("args", "env", "nccl_version", "config"):
        match = re.search(rf'"{key}"\s*:\s*', text)
        if match is not None:
            try:
                document[key] = _DECODER.raw_decode(text, match.end())[0]
            except (ValueError, RecursionError):
                continue
    start = _RESULTS.search(text)
    if "config" not in document and start is None:
        return []
    rows: list[Any] = []
    position = start.end() if start else len(text)
    while (brace := text.find("{", position)) >= 0 and not text[position:brace].strip(" \t\r\n,"):
        try:
            row, position = _DECODER.raw_decode(text, brace)
        except (ValueError, RecursionError):
            break
        rows.append(row)
    return [{"config": {}, **document, "results": rows}]


def _environment(entries: object) -> dict[str, str]:
    pairs = [str(entry).partition("=") for entry in _list(entries)]
    return {name: value for name, _, value in pairs if is_setting(name) and value}


def _collective(args: object) -> str | None:
    for arg in _list(args):
        match = _PERF.search(str(arg).rsplit("/", 1)[-1])
        if match is not None:
            return match[1]
    return None


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _int(value: object) -> int | None:
    read = number(value)
    return int(read) if read is not None else None
