"""The formats by name, and what each one is for."""

import importlib
from types import ModuleType

from nccltune.errors import InputError

MODULES = {
    "shell": "shell",
    "docker": "docker",
    "compose": "compose",
    "systemd": "systemd",
    "k8s": "k8s",
    "slurm": "slurm",
    "nccl-conf": "nccl_conf",
    "tuner-csv": "tuner_csv",
    "tuner-plugin": "tuner_plugin",
    "sglang-args": "sglang_args",
    "json": "json_text",
}
NAMES = tuple(MODULES)
RULE_NAMES = ("tuner-csv", "tuner-plugin")
"""Formats that hold a choice per message size."""
ENV_NAMES = tuple(name for name in NAMES if name not in (*RULE_NAMES, "sglang-args"))
"""Formats that hold environment variables."""


def get(name: str) -> ModuleType:
    """Return the module of a format: ``write``, ``read`` and ``parse``; raises InputError for an unknown name."""
    if name not in MODULES:
        raise InputError(f"'{name}' is no format", f"formats are {', '.join(NAMES)}", "choose one")
    return importlib.import_module(f"nccltune.emit.{MODULES[name]}")
