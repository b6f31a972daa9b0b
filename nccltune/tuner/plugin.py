"""Build the plugin from its C sources with the system's compiler, and make sure that it loads."""

import contextlib
import ctypes
import os
import shlex
import shutil
import subprocess
from pathlib import Path

from nccltune.errors import InputError, MachineError, NccltuneError

LIBRARY = "libnccl-tuner-nccltune.so"
SOURCES = ("plugin.c", "policy.c")
SYMBOLS = tuple(f"ncclTunerPlugin_v{version}" for version in (3, 4, 5, 6))
_FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", "-shared")
_TIMEOUT_S = 120.0
_KEEP_CHARACTERS = 2000


def build_plugin(output_dir: str | Path, *, compiler: str = "cc") -> Path:
    """Compile the plugin into ``output_dir`` and return the path of the library, replaced as a whole or not at all.

    ``compiler`` may carry options (``ccache gcc``). Raises InputError for a folder that does not exist, MachineError
    without a working C compiler.
    """
    folder = Path(output_dir)
    if not folder.is_dir():
        raise InputError(f"cannot build the tuner plugin in {folder}", "no such folder", "make it first")
    if not os.access(folder, os.W_OK):
        raise InputError(
            f"cannot build the tuner plugin in {folder}", "the folder is not writable", "choose another one"
        )
    words = _compiler(compiler)
    target = folder / LIBRARY
    temporary = folder / f".{LIBRARY}.{os.getpid()}.tmp"
    sources = [str(Path(__file__).with_name(name)) for name in SOURCES]
    try:
        _compile([*words, *_FLAGS, "-o", str(temporary), *sources])
        _check_loads(temporary)
        temporary.replace(target)
    except OSError as error:
        raise NccltuneError(f"cannot write {target}", error.strerror or str(error), "choose another folder") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return target


def _compiler(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"'{text}' is no compiler command", str(error), "give for example cc or gcc") from error
    if not words or shutil.which(words[0]) is None:
        raise MachineError(
            "the tuner plugin cannot be built here",
            f"the C compiler '{words[0] if words else text}' was not found",
            "install one (Debian: apt-get install gcc libc6-dev), name another with CC=, or build it on a like machine",
        )
    return words


def _compile(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        why = f"'{command[0]}' ran longer than {_TIMEOUT_S:.0f} s"
        raise MachineError("the tuner plugin cannot be built here", why, "try another compiler with CC=") from error
    except OSError as error:
        why = f"'{command[0]}' does not run: {error.strerror or error}"
        raise MachineError("the tuner plugin cannot be built here", why, "try another compiler with CC=") from error
    if done.returncode != 0:
        why = (done.stderr or done.stdout).strip()[:_KEEP_CHARACTERS] or f"'{command[0]}' ended with {done.returncode}"
        do = "install the C library's headers (Debian: libc6-dev), or name another compiler with CC="
        raise MachineError("the tuner plugin does not compile here", why, do)


def _check_loads(path: Path) -> None:
    """Load it as NCCL will (dlopen): a library for another processor, or on a noexec mount, shows here."""
    try:
        library = ctypes.CDLL(str(path.resolve()))
        for symbol in SYMBOLS:
            ctypes.c_char.in_dll(library, symbol)
    except (OSError, ValueError) as error:
        do = "build for this machine, in a folder that is not mounted noexec"
        raise MachineError("the tuner plugin was built but does not load", str(error), do) from error
