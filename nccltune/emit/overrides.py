"""Where else a setting can come from: nccl.conf files, the environment, a process that already runs. Reads NCCL_* only."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from nccltune.emit import nccl_conf
from nccltune.emit.findings import Finding, Reading
from nccltune.errors import InputError

_PREFIX = "NCCL_"
_STARTING_S = 0.5


def conf_values(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that NCCL's own files would set: $NCCL_CONF_FILE or else ~/.nccl.conf, then /etc/nccl.conf; first wins."""
    named = environ.get("NCCL_CONF_FILE")
    home = environ.get("HOME")
    files = [Path(named)] if named else [Path(home) / ".nccl.conf"] if home else []
    found: dict[str, str] = {}
    for path in [*files, Path("/etc/nccl.conf")]:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except (OSError, ValueError):
            continue
        for name, value in nccl_conf.read(text).values().items():
            found.setdefault(name, value)
    return found


def against_environment(
    reading: Reading, form: str, environ: Mapping[str, str], conf: Mapping[str, str]
) -> list[Finding]:
    """Report where the environment or a conf file decides otherwise than this file."""
    mine = {n: v for n, v in reading.values().items() if n.startswith(_PREFIX)}
    found = []
    for name, value in mine.items():
        line, here, file = reading.line_of(name), environ.get(name), conf.get(name)
        if here is not None and here != value:
            if form == "nccl-conf":
                found.append(Finding("problem", "overridden", f"{name}: this environment has {here}, which beats the conf file's {value}",
                                     f"unset {name}", line, name))  # fmt: skip
            else:
                found.append(Finding("warning", "environment-differs", f"{name}: this environment has {here}, the file says {value}",
                                     "a process started without the file keeps the former", line, name))  # fmt: skip
        if form != "nccl-conf" and file is not None and file != value:
            found.append(Finding("warning", "conf-differs", f"{name}: an nccl.conf file says {file}; where this file is not loaded, that is in force",
                                 "remove it there", line, name))  # fmt: skip
    if form != "nccl-conf":
        extra = sorted(n for n in conf if n.startswith(_PREFIX) and n not in mine)
        found += [
            Finding(
                "warning", "conf-adds", f"an nccl.conf file also sets {n}={conf[n]}", "make sure that is meant", None, n
            )
            for n in extra
        ]
    return found


def against_process(reading: Reading, pid: int) -> list[Finding]:
    """Compare with the environment a process was started with; raises InputError when that cannot be read."""
    running = process_values(pid)
    mine = {n: v for n, v in reading.values().items() if n.startswith(_PREFIX)}
    found = []
    for name, value in mine.items():
        line, has = reading.line_of(name), running.get(name)
        if has is None:
            found.append(Finding("problem", "not-running", f"process {pid} was started without {name} (the file says {value})",
                                 "restart it with this file", line, name))  # fmt: skip
        elif has != value:
            found.append(Finding("problem", "running-differs", f"process {pid} runs with {name}={has}, the file says {value}",
                                 "restart it with this file", line, name))  # fmt: skip
    for name in sorted(set(running) - set(mine)):
        found.append(
            Finding("warning", "running-adds", f"process {pid} also has {name}={running[name]}", "", None, name)
        )
    return found


def process_values(pid: int) -> dict[str, str]:
    """NCCL_* of a process as it was started; what it set for itself later does not show there."""
    path = Path(f"/proc/{pid}/environ")
    try:
        raw = _read_started(path)
    except FileNotFoundError:
        raise InputError(f"no process {pid} is running", "", "give the process id of the server") from None
    except OSError as error:
        raise InputError(f"cannot read the environment of process {pid}", error.strerror or str(error),
                         "run as the user of that process") from error  # fmt: skip
    if not raw:
        raise InputError(f"process {pid} shows no environment", "it has ended, or was started without any variable", "give the process id of the server")  # fmt: skip
    found = {}
    for item in raw.split(b"\0"):
        name, equals, value = os.fsdecode(item).partition("=")
        if equals and name.startswith(_PREFIX):
            found[name] = value
    return found


def _read_started(path: Path) -> bytes:
    """An environment; between a program's start and its first instruction it is empty for a moment."""
    deadline = time.monotonic() + _STARTING_S
    while not (raw := path.read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return raw
