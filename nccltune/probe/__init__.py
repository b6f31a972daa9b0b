"""What machine this is: the only importer of pynvml. Everything may be absent; nothing here needs a GPU."""

from nccltune.probe.gpus import gpu_state
from nccltune.probe.machine import collect_machine, match_topology
from nccltune.probe.nccl import find_libnccl

__all__ = ["collect_machine", "find_libnccl", "gpu_state", "match_topology"]
