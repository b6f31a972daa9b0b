"""NCCL variables that a report shows: on a command line, in an export, or in a -J report's environment (nothing else of it is kept)."""

import re

from nccltune.parse.nccl_tests_report import NcclTestsRun

_ASSIGNMENT = re.compile(r"\b(NCCL_[A-Z0-9_]+)=(\"[^\"]*\"|'[^']*'|\S+)")
# Set by images and build systems; NCCL does not read them. What looks like a secret is not kept under any name.
_NO_SETTING = re.compile(
    r"^NCCL_(?:VERSION|HOME|ROOT|ROOT_DIR|DIR|PATH|LIB|LIB_DIR|LIBRARY|INCLUDE|INCLUDE_DIR|SRC\w*|TESTS\w*|BUILD\w*)$"
    r"|TOKEN|SECRET|PASSWORD|CREDENTIAL|API_KEY"
)


def assignments(text: str) -> dict[str, str]:
    """Return the NCCL variables that ``text`` sets (``NCCL_PROTO=LL ./all_reduce_perf``, ``-x NCCL_ALGO=Ring``)."""
    found = {name: value.strip("\"'") for name, value in _ASSIGNMENT.findall(text)}
    return {name: value for name, value in found.items() if is_setting(name) and value}


def is_setting(name: str) -> bool:
    """Whether a variable is one that NCCL itself reads."""
    return name.startswith("NCCL_") and _NO_SETTING.search(name) is None


def add_requested(run: NcclTestsRun, requested: dict[str, str], where: str, *, has_log: bool) -> None:
    """Add variables that were asked for but not echoed by NCCL, with a warning that nothing confirms them."""
    refused = {rejected.variable for rejected in run.rejected}
    new = {k: v for k, v in requested.items() if k not in run.settings_in_force and k not in refused and is_setting(k)}
    if not new:
        return
    run.settings_in_force |= new
    reason = "NCCL's log in the report does not name them" if has_log else "the report holds no NCCL log"
    run.warnings.append(f"{', '.join(new)}: read from {where}; {reason}, so that they took effect is not confirmed")
