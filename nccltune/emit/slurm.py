"""A Slurm batch script: export lines, then ``srun --export=ALL``, because ``--export=K=V`` splits values at commas."""

import re

from nccltune.emit import shell
from nccltune.emit.document import Document, assignments, comment_lines, finish
from nccltune.emit.findings import Reading, lines_of, parsed

NAME = "slurm"
USE = "sbatch [options] FILE COMMAND..., or copy the export lines into your batch script"
_EXPORT = re.compile(r"(?:^|\s)--export[= ](\S+)")


def write(document: Document) -> str:
    """Return the batch script."""
    return finish(
        [
            "#!/bin/bash",
            *comment_lines(document),
            *assignments(document, shell.render),
            "# --export=ALL hands all of the above to every task; --export=NAME=value would cut values at their commas",
            'if [ "$#" -gt 0 ]; then',
            '    srun --export=ALL "$@"',
            "fi",
        ]
    )


def parse(text: str) -> dict[str, str]:
    """Return the variables that the tasks get; raises InputError for an unreadable file."""
    return parsed(read(text), NAME)


def read(text: str) -> Reading:
    """Read as the batch shell does, and look at what ``srun`` is told to hand on."""
    reading = shell.read(text)
    for number, line in enumerate(lines_of(text), 1):
        if line.lstrip().startswith("#") and not line.startswith("#SBATCH"):
            continue
        match = _EXPORT.search(line) if "srun" in line or line.startswith("#SBATCH") or "sbatch" in line else None
        if match is None:
            continue
        parts = match.group(1).strip("\"'").split(",")
        if parts[0].upper() != "ALL":
            reading.problem("slurm-export", number, None, f"--export={match.group(1)} without ALL drops every other variable",
                            "write --export=ALL")  # fmt: skip
        if any("=" in part for part in parts):
            reading.problem("slurm-commas", number, None, "--export=NAME=value splits at commas, which NCCL values hold",
                            "export the variable in the script and write --export=ALL")  # fmt: skip
    return reading
