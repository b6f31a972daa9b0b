"""The working folder of a session: copies of libnccl, logs, rendezvous files. Removed at the end, whoever ends it."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

from nccltune.errors import NccltuneError

PREFIX = "nccltune-"
_LOCK = ".lock"
# Between making a folder and locking it lies a moment; a folder this old is past it.
_SETTLED_S = 60.0


class Workdir:
    """A temporary folder, locked while its owner lives: ``kill -9`` cannot clean up, so the next scan does."""

    def __init__(self) -> None:
        try:
            remove_abandoned()
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
            self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            raise no_room(tempfile.gettempdir(), error) from error

    def remove(self) -> None:
        """Remove the folder and all in it; a second call changes nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self._lock)
        self._lock = -1


def no_room(where: str | Path, error: OSError) -> NccltuneError:
    """The error for a temporary folder that cannot be written."""
    return NccltuneError(
        f"cannot write {where}", error.strerror or str(error), "free some space there, or set TMPDIR to another folder"
    )


def remove_abandoned(*, settled_s: float = _SETTLED_S) -> list[Path]:
    """Remove working folders of this user whose owner is gone, and return them."""
    removed = []
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        lock = path / _LOCK
        try:
            info = lock.stat()
            if info.st_uid != os.getuid() or time.time() - info.st_mtime < settled_s:
                continue
            handle = os.open(lock, os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
        except OSError:
            continue  # its owner lives
        finally:
            os.close(handle)
    return removed
