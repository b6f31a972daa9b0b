"""Find the libnccl that serves: the one torch loads. Without importing torch, and without starting NCCL."""

import contextlib
import ctypes
import ctypes.util
import hashlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from nccltune.errors import InputError, MachineError
from nccltune.schemas.machine import LibraryRecord

_NAME = "libnccl.so.2"
UNKNOWN_VERSION = "unknown"
_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib",
            "/usr/local/cuda/lib64")  # fmt: skip
_CHUNK = 1 << 22


def find_libnccl(explicit: str | None = None, *, with_version: bool = True) -> LibraryRecord:
    """Find libnccl: the given file, else the one that torch loads, else the system's.

    Raises InputError for a given file that does not exist and MachineError where there is no libnccl at all.
    ``with_version`` loads the library to ask it (no communicator, no GPU); its version is ``unknown`` otherwise.
    """
    if explicit is not None:
        if not Path(explicit).is_file():
            raise InputError(f"--libnccl {explicit} does not exist", "", "give the path of a libnccl.so.2 file")
        record = _record(Path(explicit), "--libnccl", with_version)
        if with_version and record.version == UNKNOWN_VERSION:
            raise InputError(
                f"--libnccl {explicit} is no NCCL library",
                "it cannot be loaded, or does not answer ncclGetVersion",
                "give the path of a libnccl.so.2 file",
            )
        return record
    for path, source in _candidates():
        if path.is_file():
            return _record(path, source, with_version)
    raise MachineError(
        "libnccl was not found",
        "no nvidia-nccl wheel, no copy inside torch and none among the system's libraries",
        "install torch for CUDA or an nvidia-nccl wheel, or give --libnccl PATH",
    )


def library_version(path: str) -> str:
    """Ask a libnccl for its version, for example ``2.28.9``; ``unknown`` where it cannot be loaded."""
    try:
        code = ctypes.c_int()
        if ctypes.CDLL(path).ncclGetVersion(ctypes.byref(code)) != 0:
            return UNKNOWN_VERSION
    except (OSError, AttributeError):
        return UNKNOWN_VERSION
    return version_text(code.value)


def version_text(code: int) -> str:
    """Write NCCL's version number: 22809 -> ``2.28.9``, and 2708 -> ``2.7.8`` as it was before 2.9."""
    base = 10000 if code >= 10000 else 1000
    return f"{code // base}.{code % base // 100}.{code % 100}"


def _candidates() -> Iterator[tuple[Path, str]]:
    """Where libnccl may be, in the order in which torch's own loading finds it."""
    for package, folder in (("nvidia.nccl", "lib"), ("torch", "lib")):
        for installed in package_folders(package):
            yield installed / folder / _NAME, "torch"
    for root in [*os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep), f"{sys.prefix}/lib", *_FOLDERS]:
        if root:
            yield Path(root) / _NAME, "system"
    found = ctypes.util.find_library("nccl")
    loaded = _loaded_path(found) if found else None
    if loaded is not None:
        yield loaded, "system"


def package_folders(package: str) -> list[Path]:
    """Folders of an installed package, without importing it (its parent, a bare namespace, is)."""
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(package)
        if spec is not None:
            return [Path(folder) for folder in spec.submodule_search_locations or []]
    return []


def _loaded_path(soname: str) -> Path | None:
    """Path of a library that the loader finds by name: it is loaded, then read off this process's map."""
    try:
        ctypes.CDLL(soname)
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"(/\S*/libnccl\.so\S*)$", maps, re.MULTILINE)
    return Path(match.group(1)) if match else None


def _record(path: Path, source: str, with_version: bool) -> LibraryRecord:
    version = library_version(str(path)) if with_version else UNKNOWN_VERSION
    return LibraryRecord(path=str(path), version=version, sha256_16=_sha256_16(path), source=source)


def _sha256_16(path: Path) -> str:
    """First 16 hex digits of the file's SHA-256: two builds of one version are still two libraries."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError:
        return ""
    return digest.hexdigest()[:16]
