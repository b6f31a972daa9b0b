"""The plugin and NCCL's side of it, compiled once."""

import shutil
from pathlib import Path

import pytest
from fake_nccl_tuner import PLUGIN_FOLDER, SHARED, Logger, compile_c

FAKES = Path(__file__).parents[2] / "fakes"


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
    compile_c(
        compiler,
        folder / "plugin.so",
        PLUGIN_FOLDER / "plugin.c",
        PLUGIN_FOLDER / "policy.c",
        flags=(*SHARED, "-fvisibility=hidden"),
    )
    compile_c(compiler, folder / "nccl.so", FAKES / "fake_nccl.c", flags=SHARED)
    compile_c(compiler, folder / "policy.so", PLUGIN_FOLDER / "policy.c", flags=SHARED)
    return folder


@pytest.fixture
def logger(built):
    logger = Logger(built / "nccl.so")
    logger.clear()
    return logger
