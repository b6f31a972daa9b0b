"""NCCL's side of the tuner plugin, by ctypes: the struct of each interface version, the cost table, and who wins in it.

Layouts: NVIDIA/nccl src/include/nccl_tuner.h (v3 in 2.22.3, v4 in 2.24.3), src/include/plugin/tuner/tuner_v5.h (2.28.3) and
tuner_v6.h (2.30.3). The choice: topoGetAlgoInfo and ncclGetAlgoInfo in src/enqueue.cc.
"""

import ctypes
import subprocess
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_float, c_int, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path

import nccltune.tuner

PLUGIN_FOLDER = Path(nccltune.tuner.__file__).parent
SHARED = ("-fPIC", "-shared")
ALGOS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOS = ("LL", "LL128", "Simple")
COLLECTIVES = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
NOT_AVAILABLE = -1.0
WARN, INFO = 2, 3
CANARY = 12345.5

_table, _channels = POINTER(c_float), POINTER(c_int)
_init_v3 = CFUNCTYPE(c_int, c_size_t, c_size_t, c_void_p, POINTER(c_void_p))
_init_v5 = CFUNCTYPE(c_int, POINTER(c_void_p), c_uint64, c_size_t, c_size_t, c_void_p, c_void_p, c_void_p)
_info_v3 = CFUNCTYPE(c_int, c_void_p, c_int, c_size_t, c_int, _table, c_int, c_int, _channels)
_info_v4 = CFUNCTYPE(c_int, c_void_p, c_int, c_size_t, c_int, _table, c_int, c_int, c_int, _channels)
_finish = CFUNCTYPE(c_int, c_void_p)


def _struct(init, info, *more):
    fields = [("name", c_char_p), ("init", init), ("getCollInfo", info), ("finish", _finish), *more]
    return type("Tuner", (Structure,), {"_fields_": fields})


STRUCTS = {
    3: _struct(_init_v3, _info_v3),
    4: _struct(_init_v3, _info_v4),
    5: _struct(_init_v5, _info_v4),
    6: _struct(_init_v5, _info_v4, ("getChunkSize", c_void_p)),
}


class Logger:
    """The C logger of fake_nccl.c."""

    def __init__(self, library: Path) -> None:
        self._c = ctypes.CDLL(str(library))
        self._c.fake_text.restype = c_char_p
        self._c.fake_subsys.restype = ctypes.c_ulong

    @property
    def address(self):
        return ctypes.cast(self._c.fake_log, c_void_p)

    def clear(self):
        self._c.fake_clear()

    def lines(self, level=None):
        """(level, subsys, text) of each line."""
        c = self._c
        every = [(c.fake_level(i), c.fake_subsys(i), c.fake_text(i).decode()) for i in range(c.fake_num_lines())]
        return [line for line in every if level is None or line[0] == level]


@dataclass
class Choice:
    """What a collective would run with. ``untouched``: table and count are what NCCL handed over."""

    algo: str
    proto: str
    num_channels: int
    untouched: bool


class Communicator:
    """One communicator of a fake NCCL that loaded one interface version of the plugin."""

    def __init__(self, plugin: Path, version: int, logger: Logger | None, num_ranks=2, num_nodes=1):
        library = ctypes.CDLL(str(plugin))
        self.tuner = STRUCTS[version].in_dll(library, f"ncclTunerPlugin_v{version}")
        self.version, self.context = version, c_void_p()
        log = logger.address if logger is not None else None
        if version < 5:
            result = self.tuner.init(num_ranks, num_nodes, log, ctypes.byref(self.context))
        else:
            # 2.28.3: three ints of NVLink domains; 7*3 + 3*7*3 + 5*(4*3) doubles of constants, which must stay as they are.
            domains, constants = (c_int * 3)(1, 2, 2), (ctypes.c_double * 144)(*range(144))
            result = self.tuner.init(ctypes.byref(self.context), 77, num_ranks, num_nodes, log, domains, constants)
            assert list(constants) == list(range(144))
            assert list(domains) == [1, 2, 2]
        assert result == 0

    def choose(self, collective, num_bytes, missing=(), num_algos=7, num_protos=3, nan=(), count=0):
        """Fill a table as NCCL would, ask the plugin, and take the least entry; NCCL's own choice is Ring LL128 on 3 channels.

        ``count``: what the channel count holds before; NCCL hands over 0, which means its own.
        """
        size = num_algos * num_protos
        table = (c_float * (size + 1))(*([50.0] * size), CANARY)
        own = 1 * num_protos + min(1, num_protos - 1)
        table[own] = 10.0
        for algo, proto in missing:
            table[ALGOS.index(algo) * num_protos + PROTOS.index(proto)] = NOT_AVAILABLE
        for algo, proto in nan:
            table[ALGOS.index(algo) * num_protos + PROTOS.index(proto)] = float("nan")
        before, channels = bytes(table), c_int(count)
        registered = (0,) if self.version > 3 else ()
        result = self.tuner.getCollInfo(
            self.context,
            COLLECTIVES.index(collective),
            num_bytes,
            1,
            table,
            num_algos,
            num_protos,
            *registered,
            ctypes.byref(channels),
        )
        assert result == 0
        assert table[size] == CANARY
        usable = [(table[i], i) for i in range(size) if table[i] >= 0]
        _, best = min(usable)
        return Choice(
            ALGOS[best // num_protos],
            PROTOS[best % num_protos],
            channels.value or 3,
            bytes(table) == before and channels.value == count,
        )

    def close(self):
        assert self.tuner.finish(self.context) == 0


def compile_c(compiler, output: Path, *sources: Path, flags=()):
    """Compile with every warning an error."""
    command = [compiler, "-Wall", "-Wextra", "-Werror", "-O2", *flags, "-o", str(output), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return output
