"""The options of a grid, and how their text becomes one."""

import os
from typing import Any

from nccltune.errors import InputError
from nccltune.knobs import BASES, find_setting
from nccltune.plan import Grid
from nccltune.schemas.setting import Setting, is_variable
from nccltune.units import parse_ints, parse_size

_LOGGING = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_RAS_ENABLE", "NCCL_CONF_FILE", "NCCL_VERSION")


def make_grid(options: dict[str, Any]) -> Grid:
    """Build the grid from the scan command's options; every axis accepts ``default`` for NCCL's own choice."""
    return Grid(
        protos=_words(options["proto"]),
        algos=_words(options["algo"]),
        channels=_numbers(options["channels"], "--channels"),
        buffsizes=_axis(options["buffsize"], lambda text: str(parse_size(text))),
        nthreads=_numbers(options["nthreads"], "--nthreads"),
        p2p_levels=_words(options["p2p_level"]),
        extra=tuple(_extra(text) for text in options["extra"]),
        named=tuple(_named(text, options["base"]) for text in options["settings"]),
    )


def base_extra(texts: tuple[str, ...]) -> dict[str, str]:
    """Read ``--base-set NCCL_X=value`` options."""
    result = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not is_variable(name) or not equals or not value:
            raise InputError(
                f"--base-set {text} is not NCCL_NAME=value", "", "write for example --base-set NCCL_P2P_DISABLE=1"
            )
        result[name] = value
    return Setting.make(result).env


def environment_setting(base: str) -> Setting:
    """The NCCL_* variables of this shell, without those of the base and those of logging, as a setting."""
    env = {
        k: v
        for k, v in os.environ.items()
        if k.startswith("NCCL_") and k not in _LOGGING and BASES.get(base, {}).get(k) != v
    }
    if not env:
        raise InputError(
            "--setting env: this shell has no NCCL_* variable beyond the base",
            "",
            "source the env file first: set -a; . ./nccl.env",
        )
    return Setting.make(env, "env")


def _named(text: str, base: str) -> Setting:
    return environment_setting(base) if text == "env" else find_setting(text)


def _words(text: str | None) -> tuple[str, ...]:
    return _axis(text, lambda part: part)


def _numbers(text: str | None, flag: str) -> tuple[str, ...]:
    if not text:
        return ()
    result: list[str] = []
    for part in text.split(","):
        result += (
            ["default"] if part.strip() == "default" else [str(n) for n in parse_ints(part, what=f"number for {flag}")]
        )
    return tuple(dict.fromkeys(result))


def _axis(text: str | None, read: Any) -> tuple[str, ...]:
    if not text:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise InputError(f"'{text}' has an empty entry", "", "write entries with commas between")
    return tuple(dict.fromkeys("default" if part == "default" else read(part) for part in parts))


def _extra(text: str) -> tuple[str, tuple[str, ...]]:
    name, equals, values = text.partition("=")
    if not is_variable(name) or not equals or not all(values.split(",")):
        raise InputError(
            f"--set {text} is not NCCL_NAME=a,b",
            "",
            "write for example --set NCCL_THREAD_THRESHOLDS=default --set NCCL_CGA_CLUSTER_SIZE=1,2",
        )
    return name, tuple(dict.fromkeys(values.split(",")))
