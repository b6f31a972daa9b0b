"""Turn a setting into a file that its reader reads as meant: one module per format, each with writer and parser."""

import sys
import types
from typing import Any


class _Room(types.ModuleType):
    """This package, callable: ``nccltune.emit(...)`` is the command's Python twin, and importing the room takes its name."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        from nccltune.emit.emission import emit

        return emit(*args, **options)


sys.modules[__name__].__class__ = _Room
