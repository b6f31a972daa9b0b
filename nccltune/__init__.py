"""nccltune: NCCL settings and draft-token counts for tensor-parallel MoE serving, measured and predicted.

Importing this package touches nothing heavy: the Python twin of each command (``nccltune.predict(...)``) is
resolved from :mod:`nccltune.api` on first use.
"""

from typing import Any

__version__ = "0.1.0"

_TWINS = (
    "calibrate",
    "emit",
    "fit",
    "frame",
    "predict",
    "scan",
    "validate",
    "validate_points",
    "validate_sglang",
    "validate_trace",
)

__all__ = ["__version__", *_TWINS]


def __getattr__(name: str) -> Any:
    if name in _TWINS:
        from nccltune import api

        return getattr(api, name)
    raise AttributeError(f"module 'nccltune' has no attribute {name!r}")
