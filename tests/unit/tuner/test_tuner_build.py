"""Building on the target machine: what comes out loads, what cannot be built says why, and the wheel carries the sources."""

import ctypes
import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from nccltune.errors import InputError, MachineError, NccltuneError
from nccltune.tuner import LIBRARY, build_plugin
from nccltune.tuner.plugin import SYMBOLS

ROOT = Path(__file__).parents[3]


def test_the_library_loads_and_has_every_interface(compiler, tmp_path):
    path = build_plugin(tmp_path, compiler=compiler)
    assert path == tmp_path / LIBRARY
    library = ctypes.CDLL(str(path))
    assert all(ctypes.c_void_p.in_dll(library, symbol).value for symbol in SYMBOLS)
    # again, over itself, with options in the command; nothing else is left behind
    build_plugin(tmp_path, compiler=f"{compiler} -g0")
    assert [p.name for p in tmp_path.iterdir()] == [LIBRARY]


@pytest.mark.parametrize(
    ("command", "kind", "words"),
    [
        ("no-such-compiler", MachineError, "was not found"),
        ("", MachineError, "was not found"),
        ("'gcc", InputError, "no compiler command"),
        ("false", MachineError, "ended with 1"),
        ("true", MachineError, "does not load"),  # ends well and writes nothing
    ],
)
def test_what_cannot_be_built_says_why_and_leaves_nothing(tmp_path, command, kind, words):
    (tmp_path / LIBRARY).write_bytes(b"the old one")
    with pytest.raises(kind, match=words):
        build_plugin(tmp_path, compiler=command)
    assert [p.name for p in tmp_path.iterdir()] == [LIBRARY]
    assert (tmp_path / LIBRARY).read_bytes() == b"the old one"


def test_the_compilers_own_words_are_kept(compiler, tmp_path):
    with pytest.raises(MachineError) as error:
        build_plugin(tmp_path, compiler=f"{compiler} -Dstatic=typo")
    assert "error" in error.value.why
    assert "policy.c" in error.value.why or "plugin.c" in error.value.why


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        build_plugin(tmp_path / "none")


def test_a_folder_in_the_librarys_place(compiler, tmp_path):
    (tmp_path / LIBRARY).mkdir()
    with pytest.raises(NccltuneError, match="cannot write"):
        build_plugin(tmp_path, compiler=compiler)


def test_the_wheel_ships_the_sources_and_no_binary(tmp_path):
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"nccltune/tuner/{name}" for name in ("plugin.c", "policy.c", "policy.h")} <= set(names)
    assert not [name for name in names if name.endswith((".so", ".o"))]
