"""Read the kernels of a captured CUDA graph back: name, blocks and threads, as the driver will launch them.

For an NCCL all-reduce the number of blocks is the number of channels, so this is proof of what a setting did that does
not depend on a log.
"""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from dataclasses import dataclass
from functools import cache

_KERNEL_NODE = 0


class _KernelParams(ctypes.Structure):
    _fields_ = (
        ("func", c_void_p),
        ("grid_x", c_uint), ("grid_y", c_uint), ("grid_z", c_uint),
        ("block_x", c_uint), ("block_y", c_uint), ("block_z", c_uint),
        ("shared_bytes", c_uint),
        ("params", c_void_p), ("extra", c_void_p), ("kern", c_void_p), ("ctx", c_void_p),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class KernelNode:
    """One kernel launch of a graph."""

    name: str
    num_blocks: int
    num_threads: int


@cache
def _driver() -> ctypes.CDLL:
    lib = ctypes.CDLL("libcuda.so.1")
    lib.cuGraphGetNodes.argtypes = [c_void_p, POINTER(c_void_p), POINTER(c_size_t)]
    lib.cuGraphNodeGetType.argtypes = [c_void_p, POINTER(c_int)]
    lib.cuGraphKernelNodeGetParams_v2.argtypes = [c_void_p, POINTER(_KernelParams)]
    for name in ("cuFuncGetName", "cuKernelGetName"):
        if hasattr(lib, name):
            getattr(lib, name).argtypes = [POINTER(c_char_p), c_void_p]
    return lib


def kernel_nodes(graph: int) -> list[KernelNode]:
    """List the kernel nodes of a raw CUgraph; empty when the driver cannot tell."""
    lib = _driver()
    count = c_size_t()
    if lib.cuGraphGetNodes(graph, None, byref(count)) != 0 or count.value == 0:
        return []
    nodes = (c_void_p * count.value)()
    if lib.cuGraphGetNodes(graph, nodes, byref(count)) != 0:
        return []
    found = []
    for node in nodes:
        kind, params = c_int(-1), _KernelParams()
        if lib.cuGraphNodeGetType(node, byref(kind)) != 0 or kind.value != _KERNEL_NODE:
            continue
        if lib.cuGraphKernelNodeGetParams_v2(node, byref(params)) != 0:
            continue
        blocks = params.grid_x * params.grid_y * params.grid_z
        found.append(KernelNode(_name(lib, params), blocks, params.block_x * params.block_y * params.block_z))
    return found


def _name(lib: ctypes.CDLL, params: _KernelParams) -> str:
    text = c_char_p()
    for function, handle in (("cuFuncGetName", params.func), ("cuKernelGetName", params.kern)):
        if handle and hasattr(lib, function) and getattr(lib, function)(byref(text), handle) == 0 and text.value:
            return text.value.decode(errors="replace")
    return ""
