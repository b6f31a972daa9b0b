"""The plugin and NCCL's side of it, compiled once."""

import shutil
from pathlib import Path

import pytest
from fake_nccl_tuner import Logger, compile_c

import nccltune.tuner

SOURCES = Path(nccltune.tuner.__file__).parent
FAKES = Path(__file__).parents[2] / "fakes"
SHARED = ("-fPIC", "-shared")


@pytest.fixture(scope="session")
def compiler():
    found = shutil.which("gcc") or shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler on this machine")
    return found


@pytest.fixture(scope="session")
def built(compiler, tmp_path_factory):
    """Folder with the plugin, the fake logger, and the policy engine with all its functions visible."""
    folder = tmp_path_factory.mktemp("tuner")
    compile_c(compiler, folder / "plugin.so", SOURCES / "plugin.c", SOURCES / "policy.c", flags=(*SHARED, "-fvisibility=hidden"))
    compile_c(compiler, folder / "nccl.so", FAKES / "fake_nccl.c", flags=SHARED)
    compile_c(compiler, folder / "policy.so", SOURCES / "policy.c", flags=SHARED)
    return folder


@pytest.fixture
def logger(built):
    logger = Logger(built / "nccl.so")
    logger.clear()
    return logger
