"""Faults on purpose, so that tests can show what a scan does with a hang, a crash or wrong sums of a real process.

``NCCLTUNE_FAULT="hang:size=28672,rank=1;crash:op=open"``: kind, then conditions that must all hold (rank, size, op;
``once=PATH`` makes it happen a single time, by a marker file); several faults are separated by ``;``.
Kinds: hang, crash, exit, exception, oom, shm, wrong. Without ``op`` a fault happens at ``begin``, wrong sums at ``check``.
"""

import os
import pathlib
import time

VARIABLE = "NCCLTUNE_FAULT"


def strike(op: str, rank: int, size_bytes: int | None) -> bool:
    """Act out the first requested fault that is meant for this moment; return True when sums are to be spoilt."""
    for text in os.environ.get(VARIABLE, "").split(";"):
        kind, _, rest = text.partition(":")
        if kind and _is_now(kind, rest, {"op": op, "rank": str(rank), "size": str(size_bytes)}):
            return _act(kind)
    return False


def _is_now(kind: str, rest: str, here: dict[str, str]) -> bool:
    conditions = dict(item.split("=", 1) for item in rest.split(",") if "=" in item)
    conditions.setdefault("op", "check" if kind == "wrong" else "begin")
    marker = conditions.pop("once", None)
    if any(here.get(key) != value for key, value in conditions.items()):
        return False
    if marker is None:
        return True
    path = pathlib.Path(marker)
    if path.exists():
        return False
    path.touch()
    return True


def _act(kind: str) -> bool:
    if kind == "hang":
        time.sleep(3600)
    elif kind == "crash":
        os.abort()
    elif kind == "exit":
        os._exit(7)
    elif kind == "oom":
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
    elif kind == "shm":
        raise RuntimeError("NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)")
    elif kind == "exception":
        raise RuntimeError("ncclAllReduce: unhandled cuda error (code 1)")
    return kind == "wrong"
