"""Faults on purpose, so that tests can show what a scan does with a hang, a crash or wrong sums of a real process.

``NCCLTUNE_FAULT="hang:size=28672,rank=1"``: kind, then conditions that must all hold (rank, size, op; ``once=PATH``
makes it happen a single time, by a marker file). Kinds: hang, crash, exception, wrong, oom, shm, exit.
"""

import os
import pathlib
import time

VARIABLE = "NCCLTUNE_FAULT"


def strike(op: str, rank: int, size_bytes: int | None) -> bool:
    """Act out the requested fault if it is meant for this moment; return True when sums are to be spoilt."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return False
    kind, _, rest = text.partition(":")
    conditions = dict(item.split("=", 1) for item in rest.split(",") if "=" in item)
    here = {"op": op, "rank": str(rank), "size": str(size_bytes)}
    conditions.setdefault("op", "check" if kind == "wrong" else "begin")
    marker = conditions.pop("once", None)
    if any(here.get(key) != value for key, value in conditions.items()):
        return False
    if marker is not None:
        path = pathlib.Path(marker)
        if path.exists():
            return False
        path.touch()
    return _act(kind)


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
