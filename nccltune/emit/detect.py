"""Guess the format of an env file from its name and text. ``env``: plain NAME=value lines, whose reader is not known."""

import re

from nccltune.emit import formats
from nccltune.emit.document import MARK

PLAIN = "env"
PLAIN_READERS = ("docker", "compose", "systemd", "nccl-conf")


def detect(name: str, text: str) -> str:
    """Return a format name, or ``env``."""
    mark = re.search(rf"{MARK} --format ([a-z0-9-]+)", text[:4000])
    if mark and mark.group(1) in formats.NAMES:
        return mark.group(1)
    lines = [line.strip() for line in text.removeprefix("\ufeff").splitlines()]
    code = [line for line in lines if line and not line.startswith("#")]
    by_text = _by_text(lines, code)
    if by_text:
        return by_text
    if re.search(r"(^|/)\.?nccl\.conf$", name):
        return "nccl-conf"
    if name.endswith((".sh", ".bash")):
        return "shell"
    return PLAIN


def _by_text(lines: list[str], code: list[str]) -> str | None:
    if not code:
        return None
    if code[0].startswith("{"):
        return "json"
    if code[0].startswith("nccltune-policy "):
        return "tuner-plugin"
    if any(re.match(r"(kind|apiVersion)\s*:", line) for line in code):
        return "k8s"
    if any(line.startswith("#SBATCH") for line in lines) or any(re.match(r"(exec\s+)?srun\b", line) for line in code):
        return "slurm"
    if any(line.startswith("--") for line in code) and not any(
        re.match(r"(export\s+)?[A-Za-z_]\w*=", line) for line in code
    ):
        return "sglang-args"
    if all(line.count(",") >= 7 and "=" not in line for line in code):
        return "tuner-csv"
    assigned = [line for line in code if re.match(r"(export\s+)?[A-Za-z_]\w*\s*=", line)]
    exported = [line for line in assigned if line.startswith("export")]
    if (
        lines[0].startswith("#!")
        or any(re.match(r"set -(a|o allexport)", line) for line in code)
        or (exported and len(exported) == len(assigned))
    ):
        return "shell"
    return None
