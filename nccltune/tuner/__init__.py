"""Our NCCL tuner plugin: C sources built on the machine that serves, and the policy file it reads (docs/tuner-plugin.md).

Pure text and one compiler call; what the rules should be is decided in nccltune.emit.
"""

from nccltune.tuner.plugin import LIBRARY, build_plugin
from nccltune.tuner.policy import PolicyRule, parse_policy, write_policy

__all__ = ["LIBRARY", "PolicyRule", "build_plugin", "parse_policy", "write_policy"]
