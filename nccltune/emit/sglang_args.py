"""Flags for ``python -m sglang.launch_server``, one option a line and no comments, so that ``$(cat FILE)`` works.

Rules read from SGLang 0.5.14: top-k 1 is a chain and forces draft tokens = steps + 1 (server_args); a tree holds at
most top-k + (steps - 1) x top-k^2 nodes besides its root, of which the draft tokens are chosen.
"""

import shlex

from nccltune.emit.document import Document, Speculation
from nccltune.emit.findings import Reading, lines_of, parsed
from nccltune.errors import InputError

NAME = "sglang-args"
USE = "python -m sglang.launch_server ... $(cat FILE)"
ALGORITHM = "--speculative-algorithm"
STEPS, TOPK, DRAFT = "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"
_SWITCHES = (
    "--disable-custom-all-reduce",
    "--enforce-disable-flashinfer-allreduce-fusion",
    "--enable-symm-mem",
    "--enable-nccl-nvls",
)


def speculation(
    num_draft_tokens: int, num_steps: int | None, eagle_topk: int, draft_model: str | None
) -> Speculation | None:
    """Check and complete the triple; None for one draft token, which is plain decode. Raises InputError."""
    if num_draft_tokens < 1 or eagle_topk < 1 or (num_steps is not None and num_steps < 1):
        raise InputError(
            "draft tokens, steps and top-k must be at least 1",
            f"got {num_draft_tokens} draft tokens, {'no' if num_steps is None else num_steps} steps, top-k {eagle_topk}",
            "correct them",
        )
    if num_draft_tokens == 1:
        if num_steps is not None or eagle_topk != 1:
            raise InputError(
                "one draft token is plain decode: it has no steps and no top-k", "", "leave out --steps and --topk"
            )
        return None
    why = error_of(num_draft_tokens, num_steps, eagle_topk)
    if why:
        raise InputError(
            f"--draft-tokens {num_draft_tokens} --topk {eagle_topk}{'' if num_steps is None else f' --steps {num_steps}'} do not go together",
            *why,
        )
    steps = num_draft_tokens - 1 if num_steps is None else num_steps
    return Speculation(steps, eagle_topk, num_draft_tokens, draft_model)


def error_of(num_draft_tokens: int, num_steps: int | None, eagle_topk: int) -> tuple[str, str] | None:
    """Return why SGLang would change or refuse the triple, and what to write; None when it takes it as it is."""
    if eagle_topk == 1:
        if num_steps is not None and num_draft_tokens != num_steps + 1:
            return (
                f"top-k 1 is a chain: SGLang forces draft tokens = steps + 1 = {num_steps + 1}",
                f"write steps {num_draft_tokens - 1}",
            )
        return None
    if num_steps is None:
        return ("a tree (top-k above 1) needs its depth", "give --steps")
    nodes = eagle_topk + (num_steps - 1) * eagle_topk**2
    if num_draft_tokens - 1 > nodes:
        return (
            f"a tree of {num_steps} steps with top-k {eagle_topk} has {nodes} nodes besides the root",
            f"at most {nodes + 1} draft tokens",
        )
    return None


def flags(document: Document) -> list[str]:
    """Return the options, each with its value as one string."""
    lines: list[str] = []
    spec = document.speculation
    if spec is not None:
        lines += [
            f"{ALGORITHM} EAGLE3",
            f"{STEPS} {spec.num_steps}",
            f"{TOPK} {spec.eagle_topk}",
            f"{DRAFT} {spec.num_draft_tokens}",
        ]
        if spec.draft_model:
            if not spec.draft_model.isprintable() or any(c.isspace() or c in "*?[]'\"\\$`" for c in spec.draft_model):
                raise InputError(f"the draft model path {spec.draft_model!r} cannot be written as a bare argument",
                                 "spaces, quotes and wildcards do not survive $(cat FILE)", "use a path without them")  # fmt: skip
            lines.append(f"--speculative-draft-model-path {spec.draft_model}")
    return [*lines, *document.engine_flags]


def write(document: Document) -> str:
    """Return the options, one a line; an empty text where none is needed."""
    return "".join(f"{line}\n" for line in flags(document))


def parse(text: str) -> dict[str, str]:
    """Return each option with its value; switches have an empty one."""
    return parsed(read(text), NAME)


def read(text: str) -> Reading:
    """Read options as a shell hands them to the server, and check the speculative triple."""
    reading = Reading()
    open_option: tuple[str, int] | None = None
    for number, line in enumerate(lines_of(text), 1):
        try:
            words = shlex.split(line.removesuffix("\\"))
        except ValueError as error:
            reading.problem("unreadable", number, None, str(error), "close the quote")
            return reading
        for word in words:
            if word.startswith("--"):
                if open_option:
                    reading.add(open_option[0], "", open_option[1])
                name, equals, value = word.partition("=")
                open_option = None if equals or name in _SWITCHES else (name, number)
                if equals or name in _SWITCHES:
                    reading.add(name, value, number)
            elif open_option:
                reading.add(open_option[0], word, number)
                open_option = None
            elif word == "#" or word.startswith("#"):
                reading.problem(
                    "comment", number, None, "$(cat FILE) has no comments: this becomes an argument", "remove it"
                )
                break
    if open_option:
        reading.add(open_option[0], "", open_option[1])
    _check_triple(reading)
    return reading


def _check_triple(reading: Reading) -> None:
    values = reading.values()
    names = [name for name in (STEPS, TOPK, DRAFT) if name in values]
    if not names:
        return
    line = reading.line_of(names[-1])
    if not all(values[name].isdigit() and int(values[name]) >= 1 for name in names):
        reading.problem(
            "not-a-number", line, None, "steps, top-k and draft tokens are whole numbers, at least 1", "correct them"
        )
    elif len(names) < 3:
        reading.problem(
            "triple",
            line,
            None,
            "SGLang takes steps, top-k and draft tokens together or chooses all three itself",
            "give all three",
        )
    else:
        why = error_of(int(values[DRAFT]), int(values[STEPS]), int(values[TOPK]))
        if why:
            reading.problem("triple", line, DRAFT, why[0], why[1])
    if ALGORITHM not in values:
        reading.problem(
            "no-algorithm", line, ALGORITHM, f"{ALGORITHM} is missing: the others do nothing", f"add {ALGORITHM} EAGLE3"
        )
