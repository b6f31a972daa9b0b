"""One process at a time measures into a run folder. The lock is the kernel's, so a killed scan leaves none behind."""

import fcntl
import os
from pathlib import Path

from nccltune.errors import InputError

_HELD: dict[str, int] = {}
"""Descriptors of the folders that this process holds, by real path."""


def take(folder: Path) -> None:
    """Hold ``folder`` until ``release`` or the end of this process; raises InputError where another one measures.

    Two would disturb each other's times and write every case twice. A file system without locks is let pass.
    """
    key = os.path.realpath(folder)
    if key in _HELD:
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        why, do = "two at once disturb each other's times", "wait for it, or end it"
        raise InputError(f"another scan is measuring into {folder}", why, do) from None
    except OSError:
        os.close(handle)
        return
    _HELD[key] = handle


def release(folder: Path) -> None:
    """Let another process measure into ``folder``; nothing happens where it is not held."""
    handle = _HELD.pop(os.path.realpath(folder), None)
    if handle is not None:
        os.close(handle)
