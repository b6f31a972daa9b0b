"""Where a command may write: never over one of its inputs, a run's own files, or a file that somebody else made."""

from collections.abc import Callable, Iterable
from pathlib import Path

from nccltune.errors import InputError

MANIFEST = "manifest.json"
MEASUREMENTS = "measurements.jsonl"
FIT = "fit.json"
_RUN_FILES = (MANIFEST, MEASUREMENTS, f"{MEASUREMENTS}.gz", FIT)
_HEAD_BYTES = 4096


def is_ours(head: bytes) -> bool:
    """Whether a file with this beginning is one of nccltune's JSON documents."""
    return b'"nccltune.' in head


def check_output(
    path: Path,
    inputs: Iterable[str | Path | None] = (),
    *,
    ours: Callable[[bytes], bool] = is_ours,
    force: bool | None = None,
) -> None:
    """Raise InputError for a place that must not or cannot be written; nothing is touched.

    ``inputs``: files that the same command reads. ``ours``: tells from the first 4 KiB whether the file that is there may be
    replaced. ``force``: replace it all the same; None for a command that has no such option.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder", "", "give a file name")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}", f"the folder {path.parent} does not exist", "make it first")
    if not path.is_file():
        return  # new; or a device or a pipe: nothing in it to lose, and reading it could take forever
    if any(given is not None and Path(given).exists() and path.samefile(given) for given in inputs):
        raise InputError(f"{path} is an input of this command", "writing there would destroy it", "give another name")
    if path.name in _RUN_FILES:
        raise InputError(f"{path} is a run's own file", "its measurements would be lost", "give another name")
    if force:
        return
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise InputError(f"cannot read {path}", error.strerror or str(error), "give another name") from error
    if head.strip() and not ours(head):
        advice = "give another name, or remove it first" if force is None else "give another name, or --force to replace it"  # fmt: skip
        raise InputError(f"{path} exists and was not written by nccltune", "it is kept", advice)
