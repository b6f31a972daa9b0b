"""Machines as files: list them with where they come from, check and add one, write one without overwriting."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from nccltune import registry
from nccltune.errors import InputError, NccltuneError
from nccltune.schemas.topology import Topology

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")


@dataclass(frozen=True, slots=True)
class Entry:
    """One known machine and who its file belongs to: ``shipped``, ``user`` or ``$NCCLTUNE_DATA_PATH``."""

    topology: Topology
    path: Path
    origin: str


@dataclass(slots=True)
class Listing:
    """Every readable machine, and a warning for each file that is not."""

    entries: list[Entry] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def list_topologies() -> Listing:
    """Read every machine on the search path; a broken file costs a warning, not the list."""
    listing = Listing()
    for path in registry.names("topology").values():
        try:
            topology = registry.load_topology(str(path))
        except InputError as error:
            listing.warnings.append(str(error))
            continue
        if topology.name != path.stem:
            listing.warnings.append(f"{path} calls its machine '{topology.name}'; it is found by the file's name only")
        listing.entries.append(Entry(topology, path, _origin(path)))
    return listing


def add_topology(file: Path, *, force: bool = False) -> tuple[Topology, Path]:
    """Check a file and copy it to the user's folder under its machine's name; never overwrite without ``force``."""
    loaded = registry.load_file(file, "topology")
    assert isinstance(loaded, Topology)
    if not _NAME.match(loaded.name):
        raise InputError(
            f"{file} calls its machine '{loaded.name}'",
            "a name becomes a file name: letters, digits, dot, dash and underscore",
            "change its name",
        )
    target = registry.user_root() / "topology" / f"{loaded.name}.toml"
    write_new(target, file.read_text(encoding="utf-8"), force=force)
    return loaded, target


def write_new(path: Path, text: str, *, force: bool = False) -> None:
    """Write a text file; raises InputError if it exists and ``force`` is not given."""
    if path.exists() and not force:
        raise InputError(f"{path} exists", "nothing is overwritten unasked", "give --force, or another name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise NccltuneError(f"cannot write {path}", error.strerror or str(error), "choose another place") from error


def _origin(path: Path) -> str:
    if path.is_relative_to(registry.user_root()):
        return "user"
    shipped = registry.search_folders("topology")[-2:]
    return "shipped" if any(path.is_relative_to(folder) for folder in shipped) else "$NCCLTUNE_DATA_PATH"
