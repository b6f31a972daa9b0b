"""Our own tuner plugin as a format: the policy it reads, and the env file that makes NCCL load both.

Where it goes is a folder: the library, ``policy.csv`` and ``tuner.env`` (emission.py builds and writes them).
"""

from dataclasses import replace
from pathlib import Path

from nccltune.emit import shell
from nccltune.emit.document import MARK, Document, Rule, Variable
from nccltune.emit.findings import Reading, lines_of, parsed
from nccltune.emit.tuner_rules import ANY, EXPRESSIBLE
from nccltune.errors import InputError
from nccltune.tuner import LIBRARY, PolicyRule, parse_policy, write_policy
from nccltune.tuner.policy import PolicyError

NAME = "tuner-plugin"
POLICY_FILE = "policy.csv"
ENV_FILE = "tuner.env"
USE = f"source {ENV_FILE} before the launch command; NCCL_DEBUG=WARN shows it if the policy is refused"
_MAX_PATH = 254
"""NCCL copies NCCL_TUNER_PLUGIN into 255 bytes (src/plugin/plugin_open.cc, 2.26 to 2.30) and would cut a longer path."""


def write(document: Document) -> str:
    """Return the policy; raises InputError when there is nothing to write."""
    if not document.rules:
        raise InputError(
            "a tuner policy needs rules per size",
            "this document has none",
            "give --run with a run whose NCCL log told its choices",
        )
    comments = [*document.header, *(f"WARNING: {text}" for text in document.warnings)]
    return write_policy((policy_rule(rule) for rule in document.rules), comments)


def policy_rule(rule: Rule) -> PolicyRule:
    """Return the rule as the policy file has it."""
    return PolicyRule(
        rule.collective, rule.min_bytes, rule.max_bytes, rule.algo, rule.proto,
        rule.num_channels or None, None if rule.num_ranks == ANY else rule.num_ranks, None if rule.num_nodes == ANY else rule.num_nodes,
    )  # fmt: skip


def located(document: Document, folder: Path) -> Document:
    """Return the document with the variables that point into ``folder``; raises InputError for a path that NCCL would cut."""
    library, policy = folder / LIBRARY, folder / POLICY_FILE
    if len(str(library).encode()) > _MAX_PATH:
        raise InputError(
            f"NCCL cannot load a plugin from {folder}",
            f"NCCL cuts NCCL_TUNER_PLUGIN after {_MAX_PATH} bytes, and {LIBRARY} there needs {len(str(library).encode())}",
            "choose a folder with a shorter path",
        )
    mine = (
        Variable("NCCL_TUNER_PLUGIN", str(library), "read once per process"),
        Variable("NCCL_TUNER_CONFIG_FILE", str(policy), "read at every communicator init; the same file on every node"),
    )
    return replace(document, variables=(*document.variables, *mine))


def env_file(document: Document) -> str:
    """Return the shell file of a located document."""
    first = (
        document.header[0].replace(f"{MARK} --format {NAME}", f"{MARK} --format {shell.NAME}", 1)
        if document.header
        else ""
    )
    header = (first, f"part of --format {NAME}; the choices and their gains are in {POLICY_FILE}", *document.header[1:])
    text = shell.write(replace(document, header=header if first else ()))
    against = [name for name in EXPRESSIBLE if name not in document.env]
    return f"{text}# left set, these would overrule or narrow the policy\nunset {' '.join(against)}\n"


def parse(text: str) -> dict[str, str]:
    """Return each rule as ``collective[min-max]@nodes/ranks`` -> ``algo/proto/channels``."""
    return parsed(read(text), NAME)


def read(text: str) -> Reading:
    """Read as the plugin does, and report rules that can never match."""
    reading = Reading(first_wins=True)
    try:
        rules = parse_policy(text)
    except PolicyError as error:
        reading.problem("file-refused", error.line or None, None, f"the plugin refuses the whole file: {error.message}",
                        "correct the line: until then NCCL decides everything")  # fmt: skip
        return reading
    numbers = [
        n for n, line in enumerate(lines_of(text), 1) if n > 1 and line.strip() and not line.strip().startswith("#")
    ]
    for index, (number, rule) in enumerate(zip(numbers, rules, strict=True)):
        hidden = next((n for n, earlier in zip(numbers[:index], rules, strict=False) if _covers(earlier, rule)), None)
        if hidden is not None:
            reading.warning(
                "never-matches", number, None, f"line {hidden} matches first, always", "remove it, or move it up"
            )
        where = f"{rule.collective}[{rule.min_bytes}-{rule.max_bytes}]@{rule.num_nodes or '*'}/{rule.num_ranks or '*'}"
        reading.add(where, f"{rule.algo}/{rule.proto}/{rule.num_channels or '*'}", number)
    return reading


def _covers(earlier: PolicyRule, rule: PolicyRule) -> bool:
    return (
        earlier.collective == rule.collective
        and earlier.min_bytes <= rule.min_bytes
        and rule.max_bytes <= earlier.max_bytes
        and earlier.num_ranks in (None, rule.num_ranks)
        and earlier.num_nodes in (None, rule.num_nodes)
    )
