"""A setting: the NCCL variables a scan varies, on top of a named base environment."""

import functools
import re
from typing import Self

from pydantic import Field, field_validator

from nccltune.errors import InputError
from nccltune.schemas.common import Strict

_VARIABLE = re.compile(r"NCCL_[A-Z0-9_]+")


@functools.lru_cache(maxsize=1024)
def is_variable(name: str) -> bool:
    """Whether ``name`` can be a variable of NCCL."""
    return _VARIABLE.fullmatch(name) is not None


def _problem(env: dict[str, str]) -> str:
    """What is wrong with the variables of a setting; empty if nothing is."""
    for key, value in env.items():
        if not is_variable(key):
            return f"{key!r} is not an NCCL variable name"
        if not value:
            return f"{key} has an empty value"
        # No value of NCCL's has a line break or a control character, and no file that carries one survives it.
        if not value.isprintable():
            return f"{key} has a value with a line break or another character that cannot be printed: {value!r}"
    return ""


class Setting(Strict):
    """NCCL variables by name. ``base`` (no variables) means: the base environment alone."""

    name: str
    env: dict[str, str] = Field(default_factory=dict)

    @field_validator("env")
    @classmethod
    def _names(cls, env: dict[str, str]) -> dict[str, str]:
        if problem := _problem(env):
            raise ValueError(problem)
        return dict(sorted(env.items()))

    @property
    def id(self) -> str:
        """Canonical text of the variables (``NCCL_ALGO=Ring;NCCL_PROTO=LL``), or ``base``."""
        return "; ".join(f"{k}={v}" for k, v in self.env.items()) or "base"

    @classmethod
    def make(cls, env: dict[str, str], name: str = "") -> Self:
        """Build a setting; without a name it is called after its values, for example ``LL Ring 16ch``. Raises InputError."""
        if problem := _problem(env):
            raise InputError("this is not a setting of NCCL", problem, "write NCCL_NAME=value, the value in one line")
        return cls(name=name or short_name(env), env=env)


BASE = Setting(name="base")


def parse_setting(text: str, name: str = "") -> Setting:
    """Read ``NCCL_PROTO=Simple;NCCL_ALGO=allreduce:ring`` (or with spaces or commas between variables).

    A ``;`` or ``,`` inside a value is kept: a new variable starts only at ``NCCL_NAME=``. Empty text and
    ``base`` mean the base environment.
    """
    text = text.strip()
    if text in ("", "base"):
        return BASE
    parts = [p.strip() for p in re.split(r"[;,\s]+(?=NCCL_[A-Z0-9_]+=)", text)]
    env: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not is_variable(key) or not value.strip("; ,"):
            raise InputError(
                f"'{text}' is not a setting",
                f"'{part}' is not NCCL_NAME=value",
                "write NCCL_PROTO=LL;NCCL_ALGO=Ring, or a known name",
            )
        if key in env:
            raise InputError(f"'{text}' is not a setting", f"{key} is given twice", "give each variable once")
        env[key] = value.strip()
    return Setting.make(env, name)


def short_name(env: dict[str, str]) -> str:
    """Name a setting after its values, shortest first: protocol, algorithm, then the rest."""
    if not env:
        return "base"
    rest = dict(env)
    words = [rest.pop(key) for key in ("NCCL_PROTO", "NCCL_ALGO") if key in rest]
    low, high = rest.pop("NCCL_MIN_NCHANNELS", None), rest.pop("NCCL_MAX_NCHANNELS", None)
    if low is not None and low == high:
        words.append(f"{low}ch")
    else:
        words += [f"{word}{value}ch" for word, value in (("min", low), ("max", high)) if value is not None]
    if "NCCL_NTHREADS" in rest:
        words.append(f"{rest.pop('NCCL_NTHREADS')}thr")
    if "NCCL_BUFFSIZE" in rest:
        words.append(f"buf{rest.pop('NCCL_BUFFSIZE')}")
    return " ".join(words + [f"{key.removeprefix('NCCL_')}={value}" for key, value in sorted(rest.items())])
