"""Private copies of libnccl, one for each set of variables that NCCL reads once per library; a few are loaded at a time."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from nccltune.bench.workdir import no_room
from nccltune.knobs import library_part
from nccltune.parse.nccl_log import NcclLog, parse_nccl_log
from nccltune.schemas.measurement import Rejected


@dataclass
class Library:
    """A loaded copy of libnccl: its file, its log, and what it has said at its communicators so far."""

    path: str
    log: str
    """Template of the log's path; ``%d`` is the rank."""
    echoed: dict[str, str] = field(default_factory=dict)
    """Variables that it ever said it read."""
    refused: dict[str, Rejected] = field(default_factory=dict)
    """Variables of the library that it refused in words."""
    num_open: int = 0

    def read(self, text: str) -> NcclLog:
        """Read what it logged of one communicator; what it says once, at its first communicator, holds for the others."""
        log = parse_nccl_log(text, self.echoed)
        self.echoed.update(log.echoed)
        # A bound that does not show in the channels is each communicator's own: only words are kept.
        said = {r.variable: r for r in log.rejected if r.message in text and library_part({r.variable: ""})}
        known = {rejected.variable for rejected in log.rejected}
        log.rejected += [rejected for name, rejected in self.refused.items() if name not in known]
        self.refused.update(said)
        return log


class Copies:
    """The copies that one set of rank processes has loaded. Not more than ``max_loaded``, unless all are in use."""

    def __init__(self, libnccl: str, max_loaded: int, unload: Callable[[str], None]) -> None:
        """``libnccl``: the file to copy, empty where the back end loads its own; ``unload`` raises RankFailure."""
        self._libnccl, self._max_loaded, self._unload = libnccl, max_loaded, unload
        self._loaded: dict[tuple[tuple[str, str], ...], Library] = {}
        self._num_files = 0
        self._num_logs = 0

    def take(self, env: dict[str, str], folder: Path) -> Library:
        """The copy for these variables: a file of its own in ``folder``, so that its caches are its own."""
        key = _key(env)
        if key in self._loaded:
            # Last used last, so that the copies in use stay loaded.
            self._loaded[key] = self._loaded.pop(key)
            return self._loaded[key]
        path = (self._retired() or self._copied(folder)) if self._libnccl else ""
        self._num_logs += 1
        self._loaded[key] = Library(path, str(folder / f"nccl-{self._num_logs}-r%d.log"))
        return self._loaded[key]

    def only_others(self, env: dict[str, str]) -> bool:
        """Whether copies are loaded, and none of them for these variables."""
        return bool(self._loaded) and _key(env) not in self._loaded

    def forget(self) -> None:
        """The processes are gone: no file is loaded any more."""
        self._loaded.clear()
        self._num_files = 0

    def _retired(self) -> str:
        """Unload the copy that was used longest ago and give its file; empty while there is room, or none is free."""
        if len(self._loaded) < self._max_loaded:
            return ""
        key = next((key for key, library in self._loaded.items() if library.num_open == 0), None)
        if key is None:
            return ""
        self._unload(self._loaded[key].path)
        return self._loaded.pop(key).path

    def _copied(self, folder: Path) -> str:
        # By a count, not by how many are loaded: no two settings may share a file while it is loaded.
        path = folder / f"libnccl-{self._num_files}.so"
        try:
            if not path.exists():  # a file serves again after a restart: no process loads it twice
                shutil.copyfile(self._libnccl, path)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise no_room(path, error) from error
        self._num_files += 1
        return str(path)


def _key(env: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(env.items()))
