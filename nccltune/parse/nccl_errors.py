"""From the text of a failed program to one kind of failure and the line that says why. Used by every back end."""

import re
from dataclasses import dataclass
from typing import Final

from nccltune.schemas.measurement import ErrorKind, Failure

_MAX_MESSAGE = 400
# Everything in front of what NCCL itself says: [time stamp] host:pid:tid [device] file:line NCCL WARN.
_PREFIX = re.compile(r"^.*?NCCL (?:WARN|INFO|ERROR|ABORT)\s+")
_TAG = re.compile(r"^\s*(?:\[\d+(?:,\d+)?\](?:<std(?:out|err)>:)?\s*)+")


@dataclass(frozen=True, slots=True)
class _Sign:
    """A pattern that is proof of one kind of failure."""

    kind: ErrorKind
    pattern: re.Pattern[str]
    advice: str = ""


def _sign(kind: ErrorKind, pattern: str, advice: str = "") -> _Sign:
    return _Sign(kind, re.compile(pattern, re.IGNORECASE | re.MULTILINE), advice)


_SHM_ADVICE: Final = "give the container more shared memory (--shm-size=1g or --ipc=host)"
# In order: the cause before the error that it ends in. Texts are those of NVIDIA/nccl (src/debug.cc, src/enqueue.cc,
# src/misc/shmutils.cc, src/include/checks.h), of nccl-tests (src/common.h, src/common.cu) and of the CUDA runtime.
_SIGNS = (
    _sign(
        "shm_space",
        r"(?:shm|fallocate|shared memory|ftruncate).*no space left|no space left.*(?:shm|shared memory)"
        r"|error while creating shared memory segment|posix_fallocate failed",
        _SHM_ADVICE,
    ),
    _sign(
        "out_of_memory",
        r"cuda(?: failure| error)?[^\n]{0,40}out of memory|OutOfMemoryError|cudaErrorMemoryAllocation"
        r"|CUDA_ERROR_OUT_OF_MEMORY|cuda failure 2\b|failed to cuda (?:host )?(?:malloc|calloc)"
        r"|oom-kill|out of memory: killed process|CUDA failure[^\n]*'out of memory'",
    ),
    _sign("no_algorithm", r"no algorithm/protocol available", "this machine has no such algorithm or protocol: leave it out"),
    _sign(
        "timeout",
        r"test timeout \(|collective operation timeout|due to time limit|timeout: sending signal|watchdog timeout",
    ),
    _sign(
        "cuda",
        r"test cuda failure|cuda failure|unhandled cuda error|cuda error:|CUDA_ERROR_\w+|no cuda-capable device"
        r"|cuda driver version is insufficient|invalid device ordinal|unspecified launch failure|illegal memory access",
    ),
    _sign(
        "usage",
        r"except the first must have a prefix|unrecognized (?:element|prefix) token|unrecognized option|invalid option --"
        r"|option requires an argument|^\s*usage: \S*_perf|invalid size specified|not enough slots available"
        r"|invalid number of gpus|invalid arguments?\b[^\n]*ncclInvalidArgument",
    ),
    _sign(
        "crash",
        r"segmentation fault|bus error|core dumped|floating point exception|caught signal \d+|terminate called"
        r"|exited on signal|received signal: (?:segmentation|bus|abort)|double free or corruption|scheduler hit an exception"
        r"|received sigquit from a child|subprocess \w+ \(pid=\d+\) crashed with exit code (?!-15\b)-?\d+",
        "a bus error here usually means that /dev/shm is full",
    ),
    _sign(
        "nccl",
        r"test nccl failure|nccl (?:failure|error)\b|nccl(?:Unhandled|System|Internal|Remote|InvalidUsage|InvalidArgument)\w*error"
        r"|ncclInvalidUsage|unhandled system error|ncclRemoteError|remote process exited",
    ),
)  # fmt: skip
# Most lines of a long log hold none of these (in lower case) and can be skipped at once: much faster than the patterns.
_HINTS = (
    "fail", "error", "memory", "space", "timeout", "time limit", "prefix", "unrecognized", "option", "_perf", "fault", "dumped", "signal",
    "terminate", "corruption", "exception", "sigquit", "slots", "invalid", "oom-kill", "exited", "algorithm/protocol", "no cuda",
    "illegal", "insufficient",
)  # fmt: skip
# What Python ends a traceback with, and where SGLang's other processes begin to end because one did.
_EXCEPTION: Final = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)(?:: .*)?$", re.MULTILINE)
AFTERMATH: Final = re.compile(r"received sigquit from a child process|triggering sigquit for cleanup", re.IGNORECASE)
_TEST_FAILURE = re.compile(r"Test NCCL failure\s+(\S+)\s+'(.*?)'?\s*$", re.MULTILINE)
_TABLE_HEADER = re.compile(r"^.*\bsize\b.*\bcount\b.*\btime\b.*$", re.MULTILINE)
_SEGMENT_SIZE = re.compile(r"shared memory segment \S+ \(size (\d+)\)", re.IGNORECASE)


def classify_nccl_error(text: str) -> Failure | None:
    """Find the cause of a failure in ``text``; None where nothing in it says that something failed.

    A warning of NCCL alone is no failure: NCCL goes on after most of them.
    """
    suspicious = "\n".join(line for line in text.splitlines() if _is_suspicious(line.lower()))
    if not suspicious:
        return None
    for sign in _SIGNS:
        match = sign.pattern.search(suspicious)
        if match is None:
            continue
        if sign.kind in ("cuda", "nccl"):
            return _invalid_usage(text) or Failure(kind=sign.kind, message=_line(suspicious, match))
        return Failure(kind=sign.kind, message=_message(sign, suspicious, match))
    return None


def last_exception(text: str) -> str | None:
    """The line in which a Python traceback ends, the last one before other processes end because of it; None without one."""
    raised = _EXCEPTION.findall(AFTERMATH.split(text)[0])
    return raised[-1] if raised else None


def _is_suspicious(line: str) -> bool:
    # SGLang prints its hundreds of arguments in one line, healthy or not.
    return "server_args=" not in line and any(hint in line for hint in _HINTS)


def _invalid_usage(text: str) -> Failure | None:
    """NCCL's 'invalid usage' without its reason: the moment tells which it was.

    Measured on NCCL 2.28.9: a bad NCCL_PROTO fails at communicator init, before nccl-tests prints its table; an
    algorithm that the machine lacks fails at the first collective, after the table's heading.
    """
    failure = _TEST_FAILURE.search(text)
    if failure is None or not failure.group(2).startswith("invalid usage") or "nThread" not in text:
        return None
    said = f"{failure.group(0).strip()}"
    heading = _TABLE_HEADER.search(text)
    if heading is not None and heading.start() < failure.start():
        return Failure(
            kind="no_algorithm",
            message=_cut(f"{said}: refused at the first collective, so no algorithm or protocol is left for it here"),
        )
    return Failure(
        kind="usage", message=_cut(f"{said}: refused at communicator init, so an NCCL variable has a bad value")
    )


def _message(sign: _Sign, text: str, match: re.Match[str]) -> str:
    said = _line(text, match)
    if "traceback" in said.lower():
        return _cut(last_exception(text[match.end() :]) or said)
    if sign.kind == "shm_space":
        size = _SEGMENT_SIZE.search(text)
        if size is not None:
            said = f"{_line(text, size)}: needs {size.group(1)} bytes of /dev/shm"
    advice = sign.advice if sign.kind != "crash" or "bus error" in said.lower() else ""
    return _cut(f"{said}; {advice}" if advice else said)


def _line(text: str, match: re.Match[str]) -> str:
    """The line of the match, without what stands in front of the message."""
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    line = text[start : end if end >= 0 else len(text)].strip()
    line = _TAG.sub("", line)
    offset = line.find("Test NCCL failure")
    if offset < 0:
        offset = line.find("Test CUDA failure")
    line = line[offset:] if offset > 0 else _PREFIX.sub("", line)
    return _cut(line)


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 3] + "..."
