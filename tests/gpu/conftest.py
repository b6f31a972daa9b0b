"""GPU tests skip, with the reason, where the machine cannot run them."""

import pytest


def _num_gpus() -> int:
    from nccltune.probe import gpu_state

    return len(gpu_state())


def pytest_collection_modifyitems(items):
    """Skip what needs more GPUs than there are."""
    num = _num_gpus()
    for item in items:
        need = 2 if item.get_closest_marker("multigpu") else 1 if item.get_closest_marker("gpu") else 0
        if need > num:
            item.add_marker(pytest.mark.skip(reason=f"needs {need} NVIDIA GPU(s), this machine has {num}"))
