"""Find ``models/`` and ``topology/`` files: user folders first, then those of the clone or the installed wheel."""

import os
import re
import tomllib
from pathlib import Path
from typing import TypeVar

import platformdirs
from pydantic import BaseModel, ValidationError

from nccltune.errors import InputError
from nccltune.schemas.common import first_problem
from nccltune.schemas.model import Drafter, Model
from nccltune.schemas.topology import Topology

T = TypeVar("T", bound=BaseModel)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PACKAGE = Path(__file__).resolve().parent
KINDS: dict[str, tuple[str, type[BaseModel]]] = {
    "model": ("models", Model),
    "drafter": ("models/drafters", Drafter),
    "topology": ("topology", Topology),
}


def search_folders(kind: str) -> list[Path]:
    """Folders searched for ``kind``, first match wins: $NCCLTUNE_DATA_PATH, the user's, the clone's or the wheel's."""
    folder = KINDS[kind][0]
    extra = [Path(p) for p in os.environ.get("NCCLTUNE_DATA_PATH", "").split(os.pathsep) if p]
    roots = [*extra, user_root(), _PACKAGE.parent, _PACKAGE / "data"]
    clone = _PACKAGE.parent / "pyproject.toml"
    if not clone.is_file():  # an installed wheel: what lies beside the package in site-packages is not ours
        roots.remove(_PACKAGE.parent)
    return [root / folder for root in roots]


def user_root() -> Path:
    """The user's own folder for models and machines."""
    return Path(platformdirs.user_config_dir("nccltune"))


def load_file(path: Path, kind: str) -> BaseModel:
    """Read one TOML file of ``kind``; raises InputError naming the file and the field."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", "", "check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}", str(error), "check the path and its permissions") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML", str(error), "correct the file") from error
    schema, version = document.pop("schema", None), document.pop("schema_version", None)
    if schema != f"nccltune.{kind}" or version != 1:
        raise InputError(
            f"{path} is not a nccltune.{kind} file of version 1",
            f"it says schema = {schema!r}, schema_version = {version!r}",
            f'start it with schema = "nccltune.{kind}" and schema_version = 1',
        )
    try:
        return KINDS[kind][1].model_validate(document)
    except ValidationError as error:
        raise InputError(
            f"{path} is not a valid {kind} file",
            first_problem(error),
            "correct the file",
        ) from error


def names(kind: str) -> dict[str, Path]:
    """Every known name of ``kind`` with its file; the first folder of the search path wins."""
    found: dict[str, Path] = {}
    for folder in search_folders(kind):
        for path in sorted(folder.glob("*.toml")) if folder.is_dir() else []:
            found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def load_model(name: str) -> Model:
    """Load a model by file name, alias or path."""
    return _load(name, "model", Model)


def load_drafter(name: str) -> Drafter:
    """Load a drafter by file name, alias or path."""
    return _load(name, "drafter", Drafter)


def load_topology(name: str) -> Topology:
    """Load a machine by file name, alias or path."""
    return _load(name, "topology", Topology)


def _load(name: str, kind: str, cls: type[T]) -> T:
    if name.endswith(".toml"):
        loaded = load_file(Path(name), kind)
    else:
        known = names(kind)
        path = known.get(name) or known.get(name.lower()) or _by_alias(name, known)
        if path is None:
            import difflib

            close = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.4)
            raise InputError(
                f"no {kind} is called '{name}'",
                f"known: {', '.join(known)}",
                f"did you mean {' or '.join(close)}?" if close else "give one of these, or the path of a .toml file",
            )
        loaded = load_file(path, kind)
    assert isinstance(loaded, cls)
    return loaded


def _by_alias(name: str, known: dict[str, Path]) -> Path | None:
    wanted = name.lower()
    for path in known.values():
        try:
            text = path.read_text(encoding="utf-8")
            # Cheap test first: parsing every file would cost more than the rest of a command.
            aliases = tomllib.loads(text).get("aliases", []) if wanted in text.lower() else []
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            continue  # a broken file of the user must not hide the others; asking for it by name says what is wrong
        if isinstance(aliases, list) and wanted in (str(alias).lower() for alias in aliases):
            return path
    return None


def add_file(kind: str, name: str, text: str, *, path: Path | None = None, force: bool = False) -> Path:
    """Write a file of ``kind`` (into the user's folder unless ``path`` is given) and return where it is.

    The text is read back before it counts; an existing file is left alone without ``force``.
    """
    if not _NAME.fullmatch(name) or name.endswith(".toml"):
        raise InputError(
            f"'{name[:100]}' is not a name for a {kind}", "it becomes a file name and an argument of other commands",
            "use up to 100 letters, digits, -, _ and ., the first a letter or digit",
        )  # fmt: skip
    target = path or user_root() / KINDS[kind][0] / f"{name}.toml"
    if target.exists() and not (force and target.is_file()):
        raise InputError(f"{target} exists", "it would be overwritten", "choose another --name or give --force")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8", newline="\n")
        load_file(temporary, kind)
        temporary.replace(target)
    except OSError as error:
        raise InputError(f"cannot write {target}", str(error), "choose another place with -o") from error
    finally:
        temporary.unlink(missing_ok=True)
    return target
