"""A patient NVML session: every question may go unanswered (no driver, an old one, a virtual machine) and gives None."""

import contextlib
from types import ModuleType, TracebackType
from typing import Any, Self


class Nvml:
    """One NVML session as a context manager; on a machine without NVML it answers None to everything."""

    def __init__(self) -> None:
        self._lib: ModuleType | None = None
        self.why_not = ""
        """Why there is no session; empty when there is one."""

    def __enter__(self) -> Self:
        try:
            import pynvml

            pynvml.nvmlInit()
            self._lib = pynvml
        except Exception as error:  # pynvml raises its own errors, and OSError or AttributeError with broken drivers
            self.why_not = str(error) or type(error).__name__
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lib is not None:
            with contextlib.suppress(Exception):
                self._lib.nvmlShutdown()
            self._lib = None

    @property
    def available(self) -> bool:
        """True where the driver answers."""
        return self._lib is not None

    def ask(self, function: str, *args: Any) -> Any:
        """Call an NVML function; None if this driver, GPU or virtual machine does not answer it."""
        if self._lib is None or any(arg is None for arg in args):
            return None
        try:
            return getattr(self._lib, function)(*args)
        except Exception:  # one class per NVML status, plus ctypes' own for functions that the driver lacks
            return None

    def text(self, function: str, *args: Any) -> str | None:
        """Call a function that gives text; older bindings give bytes."""
        answer = self.ask(function, *args)
        if isinstance(answer, bytes):
            return answer.decode("utf-8", "replace")
        return None if answer is None else str(answer)

    def whole(self, function: str, *args: Any) -> int | None:
        """Call a function that gives a whole number."""
        answer = self.ask(function, *args)
        return int(answer) if isinstance(answer, int) else None

    def constant(self, name: str, default: int) -> int:
        """Value of an NVML constant, or its value in the header when the bindings do not name it."""
        return int(getattr(self._lib, name, default))

    def handle(self, index: int) -> Any:
        """Handle of a GPU by NVML's order (PCI bus), or None."""
        return self.ask("nvmlDeviceGetHandleByIndex", index)

    def num_gpus(self) -> int:
        """Number of GPUs that NVML sees; CUDA_VISIBLE_DEVICES plays no part."""
        return self.whole("nvmlDeviceGetCount") or 0
