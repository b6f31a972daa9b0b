"""NCCL through ctypes on an explicit libnccl file: the few calls an all-reduce benchmark needs.

The path is explicit because measuring another libnccl than the one that serves is the worst mistake this tool could
make. A private copy of the file, loaded in the same process, has its own caches: settings that NCCL reads once per
library take effect there (docs/knobs.md).
"""

import _ctypes
import ctypes
from ctypes import POINTER, byref, c_char, c_char_p, c_float, c_int, c_size_t, c_uint, c_void_p

UNIQUE_ID_BYTES = 128
DTYPES = {"float16": 6, "float32": 7, "bfloat16": 9}
_SUM = 0
# NCCL_WIN_COLL_SYMMETRIC of nccl.h: the window lies at the same place on every rank, which symmetric kernels need.
_SYMMETRIC_WINDOW = 1
_SIM_MAGIC = 0x74685283
_UNDEFINED_TIME = -1.0


class NcclError(RuntimeError):
    """An NCCL call failed; the text is NCCL's own."""


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", c_char * UNIQUE_ID_BYTES),)


class _SimInfo(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("magic", c_uint), ("version", c_uint), ("estimated_time", c_float))


class LibNccl:
    """One loaded copy of libnccl."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lib = ctypes.CDLL(path)
        lib = self._lib
        lib.ncclGetErrorString.restype = c_char_p
        lib.ncclGetErrorString.argtypes = [c_int]
        lib.ncclGetVersion.argtypes = [POINTER(c_int)]
        lib.ncclGetUniqueId.argtypes = [POINTER(_UniqueId)]
        lib.ncclCommInitRank.argtypes = [POINTER(c_void_p), c_int, _UniqueId, c_int]
        lib.ncclAllReduce.argtypes = [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p]
        lib.ncclAllGather.argtypes = [c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p]
        lib.ncclReduceScatter.argtypes = [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p]
        lib.ncclBroadcast.argtypes = [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p]
        for name in ("ncclCommDestroy", "ncclCommAbort"):
            getattr(lib, name).argtypes = [c_void_p]
        if hasattr(lib, "ncclGetLastError"):
            lib.ncclGetLastError.restype = c_char_p
            lib.ncclGetLastError.argtypes = [c_void_p]
        if self.has_windows:
            lib.ncclMemAlloc.argtypes = [POINTER(c_void_p), c_size_t]
            lib.ncclMemFree.argtypes = [c_void_p]
            lib.ncclCommWindowRegister.argtypes = [c_void_p, c_void_p, c_size_t, POINTER(c_void_p), c_int]
            lib.ncclCommWindowDeregister.argtypes = [c_void_p, c_void_p]

    @property
    def has_windows(self) -> bool:
        """Whether buffers can be registered as symmetric windows (NCCL 2.27 and later)."""
        return all(hasattr(self._lib, name) for name in ("ncclMemAlloc", "ncclCommWindowRegister"))

    def unload(self) -> None:
        """Close the file: its GPU memory and its caches go with it. Only after all its communicators are closed."""
        _ctypes.dlclose(self._lib._handle)

    def version_code(self) -> int:
        """NCCL's version number, for example 22809."""
        code = c_int()
        self._check(self._lib.ncclGetVersion(byref(code)), "ncclGetVersion")
        return code.value

    def version(self) -> str:
        """NCCL's version as text, for example ``2.28.9``."""
        return version_text(self.version_code())

    def unique_id(self) -> bytes:
        """Make the 128 bytes that let ranks find each other; starts the bootstrap root in this process."""
        uid = _UniqueId()
        self._check(self._lib.ncclGetUniqueId(byref(uid)), "ncclGetUniqueId")
        return ctypes.string_at(byref(uid), UNIQUE_ID_BYTES)

    def init_rank(self, num_ranks: int, unique_id: bytes, rank: int) -> int:
        """Join a communicator on the current CUDA device and return its handle."""
        uid = _UniqueId()
        ctypes.memmove(byref(uid), unique_id, UNIQUE_ID_BYTES)
        handle = c_void_p()
        self._check(self._lib.ncclCommInitRank(byref(handle), num_ranks, uid, rank), "ncclCommInitRank")
        assert handle.value is not None
        return handle.value

    def all_reduce(self, handle: int, pointer: int, count: int, dtype: str, stream: int) -> None:
        """Queue an in-place sum of ``count`` elements at device address ``pointer`` on a CUDA stream."""
        result = self._lib.ncclAllReduce(pointer, pointer, count, DTYPES[dtype], _SUM, handle, stream)
        self._check(result, "ncclAllReduce", handle)

    def all_gather(self, handle: int, source: int, target: int, count: int, dtype: str, stream: int) -> None:
        """Queue a gather of ``count`` elements from every rank."""
        self._check(
            self._lib.ncclAllGather(source, target, count, DTYPES[dtype], handle, stream), "ncclAllGather", handle
        )

    def reduce_scatter(self, handle: int, source: int, target: int, count: int, dtype: str, stream: int) -> None:
        """Queue a sum of which every rank keeps its own ``count`` elements."""
        result = self._lib.ncclReduceScatter(source, target, count, DTYPES[dtype], _SUM, handle, stream)
        self._check(result, "ncclReduceScatter", handle)

    def broadcast(self, handle: int, source: int, target: int, count: int, dtype: str, stream: int) -> None:
        """Queue a broadcast of rank 0's ``count`` elements."""
        self._check(
            self._lib.ncclBroadcast(source, target, count, DTYPES[dtype], 0, handle, stream), "ncclBroadcast", handle
        )

    def simulate_us(self, handle: int, pointer: int, count: int, dtype: str, stream: int) -> float | None:
        """NCCL's own estimate of one all-reduce in microseconds, without running it; None before NCCL 2.22."""
        if not hasattr(self._lib, "ncclGroupSimulateEnd"):
            return None
        info = _SimInfo(ctypes.sizeof(_SimInfo), _SIM_MAGIC, self.version_code(), _UNDEFINED_TIME)
        self._check(self._lib.ncclGroupStart(), "ncclGroupStart")
        result = self._lib.ncclAllReduce(
            pointer, pointer, count, DTYPES[dtype], _SUM, c_void_p(handle), c_void_p(stream)
        )
        ended = self._lib.ncclGroupSimulateEnd(byref(info))
        self._check(result, "ncclAllReduce", handle)
        self._check(ended, "ncclGroupSimulateEnd", handle)
        return float(info.estimated_time) if info.estimated_time > 0 else None

    def mem_alloc(self, num_bytes: int) -> int:
        """Allocate device memory that can be registered as a window; return its address."""
        pointer = c_void_p()
        self._check(self._lib.ncclMemAlloc(byref(pointer), num_bytes), "ncclMemAlloc")
        assert pointer.value is not None
        return pointer.value

    def mem_free(self, pointer: int) -> None:
        """Free what ``mem_alloc`` gave."""
        self._check(self._lib.ncclMemFree(pointer), "ncclMemFree")

    def window_register(self, handle: int, pointer: int, num_bytes: int) -> int | None:
        """Register memory as a symmetric window, together with all ranks; None where this communicator has none."""
        window = c_void_p()
        code = self._lib.ncclCommWindowRegister(handle, pointer, num_bytes, byref(window), _SYMMETRIC_WINDOW)
        self._check(code, "ncclCommWindowRegister", handle)
        return window.value

    def window_deregister(self, handle: int, window: int) -> None:
        """Take a window back, together with all ranks."""
        self._check(self._lib.ncclCommWindowDeregister(handle, window), "ncclCommWindowDeregister", handle)

    def destroy(self, handle: int) -> None:
        """Leave a communicator after its work is done."""
        self._check(self._lib.ncclCommDestroy(handle), "ncclCommDestroy")

    def abort(self, handle: int) -> None:
        """Leave a communicator at once, without waiting for the other ranks."""
        self._check(self._lib.ncclCommAbort(handle), "ncclCommAbort")

    def _check(self, code: int, call: str, handle: int | None = None) -> None:
        if code == 0:
            return
        text = self._lib.ncclGetErrorString(code).decode(errors="replace")
        last = b""
        if hasattr(self._lib, "ncclGetLastError"):
            last = self._lib.ncclGetLastError(handle) or b""
        raise NcclError(f"{call}: {text} (code {code}) {last.decode(errors='replace')}".strip())


def version_text(code: int) -> str:
    """Turn NCCL's version number into text: 22809 -> 2.28.9; before 2.9 it was 2804 -> 2.8.4."""
    if code >= 10_000:
        return f"{code // 10_000}.{code % 10_000 // 100}.{code % 100}"
    return f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
