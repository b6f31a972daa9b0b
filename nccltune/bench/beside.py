"""What an engine could use instead of NCCL's tuned all-reduce, as communicators of one rank (``nccltune.methods``).

Only the worker imports this room, with torch in hand. Nothing here uses NVLink multicast. Every method needs the memory
of the other GPUs, so each first says whether it is there (``unavailable``), before any rank waits for another.
"""

import contextlib
import datetime
import importlib
import importlib.util
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from nccltune.bench.comm import Comm, NcclComm
from nccltune.bench.libnccl import LibNccl

_GROUP_TIMEOUT = datetime.timedelta(seconds=60)
# Windows lie on whole pages of the device's virtual memory.
_PAGE_BYTES = 2 << 20
# Kernels are compiled and loaded at their first launch, which must not be inside a capture.
_WARM_UP_ELEMENTS = 64
_SYMM_MEM_DTYPES = ("bfloat16", "float32")
_SYMM_MEM_OPS = {"symm-mem-one-shot": "one_shot_all_reduce", "symm-mem-two-shot": "two_shot_all_reduce_"}
_SGLANG = "sglang.srt.distributed.device_communicators"
_SGLANG_CLASSES = {
    "sglang-custom-v2": (f"{_SGLANG}.custom_all_reduce_v2", "CustomAllReduceV2"),
    "sglang-custom-v1": (f"{_SGLANG}.custom_all_reduce", "CustomAllreduce"),
}


class Refused(Exception):  # noqa: N818 - an answer of the method, not a fault
    """The method does not take this machine or this message; an engine would fall back to NCCL."""


@dataclass(frozen=True)
class Place:
    """Where a communicator is opened: one rank, its GPU, and how the ranks find each other."""

    torch: Any
    device: Any
    dtype: str
    rank: int
    num_ranks: int
    num_elements: int
    """Elements that the communicator's own buffer must hold."""
    rendezvous: str
    """Path of a file that does not exist yet when the first method of these processes opens."""
    library: LibNccl | None = None
    unique_id: str = ""
    log: str = ""
    log_start: int = 0


def unavailable(
    method: str, torch: Any, device: int, devices: list[int], dtype: str, library: LibNccl | None = None
) -> str:
    """Why this rank cannot offer ``method``, empty when it can as far as it knows; waits for no other rank."""
    blocked = [other for other in devices if other != device and not torch.cuda.can_device_access_peer(device, other)]
    if blocked:
        return f"GPU {device} cannot reach the memory of GPU {blocked[0]}"
    if method == "nccl-windows":
        version = library.version() if library else "unknown"
        return "" if library and library.has_windows else f"NCCL {version} has no windows (2.27 and later have)"
    if method in _SYMM_MEM_OPS:
        return _no_symm_mem(torch, _SYMM_MEM_OPS[method], dtype)
    return _no_sglang(*_SGLANG_CLASSES[method])


def open_comm(method: str, place: Place) -> Comm:
    """Open ``method``, together with all ranks; raises Refused where it does not take this machine."""
    if method == "nccl-windows":
        return _open_window(place)
    if method in _SYMM_MEM_OPS:
        return SymmMemComm(place, _SYMM_MEM_OPS[method])
    return SglangComm(place, *_SGLANG_CLASSES[method])


class WindowComm(NcclComm):
    """NCCL whose messages lie in a window registered on all ranks, so that it may use its symmetric kernels."""

    def __init__(self, place: Place, library: LibNccl, handle: int) -> None:
        super().__init__(library, handle, place.dtype, place.log, place.log_start)
        element = getattr(place.torch, place.dtype).itemsize
        num_bytes = -(-place.num_elements * element // _PAGE_BYTES) * _PAGE_BYTES
        self._pointer = library.mem_alloc(num_bytes)
        window = library.window_register(handle, self._pointer, num_bytes)
        if window is None:
            raise Refused("NCCL does not register symmetric windows on these GPUs")
        self._window = window
        memory = place.torch.as_tensor(_DeviceMemory(self._pointer, num_bytes), device=place.device)
        self.buffer = memory.view(getattr(place.torch, place.dtype))[: place.num_elements].zero_()

    def model_us(self, tensor: Any, stream: Any) -> float | None:
        """None: NCCL's simulation is of its other kernels."""
        return None

    def close(self, *, abort: bool) -> None:
        """Leave the communicator and free the window; an aborted one keeps its memory until the process ends."""
        self.buffer = None
        if not abort:
            self._library.window_deregister(self._handle, self._window)
        super().close(abort=abort)
        if not abort:
            self._library.mem_free(self._pointer)


class SymmMemComm(Comm):
    """torch symmetric memory: one-shot sums into memory of its own, two-shot in place."""

    def __init__(self, place: Place, op: str) -> None:
        torch = place.torch
        symm_mem = importlib.import_module("torch.distributed._symmetric_memory")
        group = _group(place)
        # CUDA is the default where NVSHMEM is not asked for; torch 2.11 has the default but not the name to set.
        with contextlib.suppress(AttributeError, RuntimeError):
            symm_mem.set_backend("CUDA")
        enable = getattr(symm_mem, "enable_symm_mem_for_group", None)
        if enable is not None and not hasattr(enable, "__deprecated__"):  # needed until torch did it by itself
            enable(group.group_name)
        dtype = getattr(torch, place.dtype)
        self.buffer = symm_mem.empty(place.num_elements, dtype=dtype, device=place.device)
        symm_mem.rendezvous(self.buffer, group.group_name)
        self.buffer.zero_()
        torch.cuda.synchronize(place.device)
        torch.distributed.barrier(group)
        self._ops, self._op, self._group_name = torch.ops.symm_mem, op, group.group_name
        self._out: Any = None
        if op == "one_shot_all_reduce" and hasattr(self._ops, "one_shot_all_reduce_out"):
            self._out = torch.empty(place.num_elements, dtype=dtype, device=place.device)
        self.all_reduce(self.buffer[:_WARM_UP_ELEMENTS], None)
        torch.cuda.synchronize(place.device)

    def all_reduce(self, tensor: Any, stream: Any) -> Any:
        """Queue the sum of a part of the buffer on the current stream."""
        if self._out is not None:
            out = self._out[: tensor.numel()]
            return self._ops.one_shot_all_reduce_out(tensor, "sum", self._group_name, out)
        return getattr(self._ops, self._op)(tensor, "sum", self._group_name)

    def close(self, *, abort: bool) -> None:
        """Free the buffer."""
        self.buffer = self._out = None


class SglangComm(Comm):
    """SGLang's own all-reduce, by the class that the engine itself uses."""

    def __init__(self, place: Place, module: str, name: str) -> None:
        # Its own test of peer access needs SGLang's process groups; here every sum is checked anyway.
        os.environ["SGLANG_SKIP_P2P_CHECK"] = "1"
        self._torch, self._device = place.torch, place.device
        self._kernel = getattr(importlib.import_module(module), name)(group=_group(place), device=place.device)
        if self._kernel.disabled:
            raise Refused("SGLang does not use it on these GPUs")
        dtype = getattr(place.torch, place.dtype)
        for count in {_WARM_UP_ELEMENTS, min(place.num_elements, self._kernel.max_size // dtype.itemsize)}:
            self.all_reduce(place.torch.zeros(count, dtype=dtype, device=place.device), None)
        place.torch.cuda.synchronize(place.device)

    def all_reduce(self, tensor: Any, stream: Any) -> Any:
        """Queue the sum; raises Refused for a message that SGLang would give to NCCL."""
        if not self._kernel.should_custom_ar(tensor):
            raise Refused(f"SGLang gives messages of {tensor.numel() * tensor.element_size()} B to NCCL")
        return self._kernel.custom_all_reduce(tensor)

    def capturing(self) -> AbstractContextManager[Any]:
        """On leaving it the ranks exchange the addresses that the graph reads."""
        context: AbstractContextManager[Any] = self._kernel.capture()
        return context

    def close(self, *, abort: bool) -> None:
        """Free its buffers, together with the other ranks."""
        if not abort:
            self._torch.cuda.synchronize(self._device)
            self._kernel.close()
        # Its destructor would leave a second time, and wait for the other ranks.
        self._kernel.disabled = True
        if not abort:
            self._torch.cuda.empty_cache()  # each of its graphs had memory of its own


class _DeviceMemory:
    """Device memory that torch did not allocate, as bytes, in the form that it takes over without a copy."""

    def __init__(self, pointer: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
        }


def _open_window(place: Place) -> WindowComm:
    library = place.library
    assert library is not None
    handle = library.init_rank(place.num_ranks, bytes.fromhex(place.unique_id), place.rank)
    try:
        return WindowComm(place, library, handle)
    except BaseException:
        library.abort(handle)
        raise


def _group(place: Place) -> Any:
    """The process group of these ranks, for addresses and handles only: gloo, made at first use."""
    dist = place.torch.distributed
    if not dist.is_initialized():
        dist.init_process_group(
            "gloo", init_method=f"file://{place.rendezvous}", rank=place.rank, world_size=place.num_ranks,
            timeout=_GROUP_TIMEOUT,
        )  # fmt: skip
    return dist.group.WORLD


def _no_symm_mem(torch: Any, op: str, dtype: str) -> str:
    if dtype not in _SYMM_MEM_DTYPES:
        return f"torch symmetric memory sums {' and '.join(_SYMM_MEM_DTYPES)} only"
    try:
        importlib.import_module("torch.distributed._symmetric_memory")
        getattr(torch.ops.symm_mem, op)
    except (ImportError, AttributeError) as error:
        return f"torch {torch.__version__} has no symmetric memory ({_first_line(error)})"
    return ""


def _no_sglang(module: str, name: str) -> str:
    for package in ("sgl_kernel", "sglang"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
    try:
        getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever the import of a whole engine runs into
        return f"SGLang cannot be imported ({_first_line(error)})"
    return ""


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
