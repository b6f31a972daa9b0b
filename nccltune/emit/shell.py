"""A file to ``source``: ``export NAME=value`` with POSIX quoting, for bash, dash and the shells like them."""

import re
import shlex

from nccltune.algo_lists import TOKENS
from nccltune.emit.document import Document, Variable, assignments, check_variable, comment_lines, finish
from nccltune.emit.findings import Entry, Reading, parsed
from nccltune.emit.shell_words import Command, UnterminatedError, Word, split_commands

NAME = "shell"
USE = "source it before the launch command: . FILE"
_ASSIGNMENT = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)=(.*)$", re.DOTALL)
_COLLECTIVE = re.compile(r"^(allreduce|allgather|broadcast|reduce|reducescatter):", re.IGNORECASE)


def render(variable: Variable) -> str:
    """Return the export line of one variable."""
    check_variable(variable, NAME)
    return f"export {variable.name}={shlex.quote(variable.value)}"


def write(document: Document) -> str:
    """Return the file."""
    return finish([*comment_lines(document), *assignments(document, render)])


def parse(text: str) -> dict[str, str]:
    """Return the exported variables; raises InputError for an unreadable file."""
    return parsed(read(text), NAME)


def read(text: str) -> Reading:
    """Read without running: the variables that a child process would see after sourcing."""
    shell = _Shell()
    try:
        commands = split_commands(text)
    except UnterminatedError as error:
        shell.reading.problem("unreadable", error.line, None, str(error), "close the quote")
        return shell.reading
    for command in commands:
        shell.run(command)
    for entry in shell.plain.values():
        if entry.name.startswith("NCCL_"):
            shell.reading.problem("not-exported", entry.line, entry.name,
                                  f"{entry.name} is set without export: the launched process never sees it",
                                  f"write export {entry.name}=...")  # fmt: skip
    return shell.reading


def _is_list(word: str) -> bool:
    """Whether a command name is what follows a ``;`` of NCCL_ALGO or NCCL_PROTO: ``tree``, ``^LL128``, ``ring,tree``."""
    known = {token.lower() for tokens in TOKENS.values() for token in tokens}
    return all(item.lower() in known for item in word.removeprefix("^").split(","))


class _Shell:
    """What a shell remembers while it reads assignments: exported ones (the reading) and plain ones."""

    def __init__(self) -> None:
        self.reading = Reading()
        self.plain: dict[str, Entry] = {}
        self.export_all = False

    def run(self, command: Command) -> None:
        """Take one command for what it does to the environment; commands that do nothing to it are passed over."""
        words = [word.text for word in command.words]
        if words[0] == "set":
            self._set(words[1:])
        elif words[0] in ("export", "declare", "typeset", "readonly"):
            self._export(command, words)
        elif words[0] == "unset":
            self.reading.entries = [e for e in self.reading.entries if e.name not in words[1:]]
        elif all(_ASSIGNMENT.match(word) for word in words):
            for word in command.words:
                self._assign(word, command.line, self.export_all)
        else:
            self._judge(command, words)

    def _set(self, options: list[str]) -> None:
        if options[:1] == ["-a"] or options[:2] == ["-o", "allexport"]:
            self.export_all = True
        elif options[:1] == ["+a"] or options[:2] == ["+o", "allexport"]:
            self.export_all = False

    def _assign(self, word: Word, line: int, export: bool) -> None:
        match = _ASSIGNMENT.match(word.text)
        assert match is not None
        name, value = match.groups()
        for text in word.expands:
            self.reading.warning("expansion", line, name, f"{name}: the shell replaces {text} when the file is sourced",
                                 "use single quotes if it is meant literally")  # fmt: skip
        if export or any(entry.name == name for entry in self.reading.entries):
            self.plain.pop(name, None)
            self.reading.add(name, value, line)
        else:
            self.plain[name] = Entry(name, value, line)

    def _export(self, command: Command, words: list[str]) -> None:
        exports = words[0] == "export" or any(w.startswith("-") and "x" in w for w in words)
        for word in command.words[1:]:
            if _ASSIGNMENT.match(word.text):
                self._assign(word, command.line, exports or self.export_all)
            elif exports and word.text in self.plain:
                self.reading.entries.append(self.plain.pop(word.text))
            elif "=" in word.text and not word.text.startswith("-"):
                self._spaces(command)
                return

    def _judge(self, command: Command, words: list[str]) -> None:
        first = _ASSIGNMENT.match(words[0])
        if len(words) > 1 and words[0].startswith("NCCL_") and words[1].startswith("="):
            self._spaces(command)
        elif _COLLECTIVE.match(words[0]) or _is_list(words[0]):
            self.reading.problem("unquoted-semicolon", command.line, None,
                                 f"an unquoted ; makes the shell run '{words[0]}' as a command", "quote the value")  # fmt: skip
        elif first is not None and first.group(1).startswith("NCCL_"):
            program = next(word for word in words if not _ASSIGNMENT.match(word))
            self.reading.problem("one-command", command.line, first.group(1),
                                 f"{words[0]} is set for the one command '{program}' only",
                                 "quote the value if it holds spaces; otherwise give it a line of its own with export")  # fmt: skip
        elif words[0].startswith("NCCL_"):
            self.reading.problem("not-an-assignment", command.line, None, f"the shell runs '{words[0]}' as a command",
                                 "write export NAME=value")  # fmt: skip

    def _spaces(self, command: Command) -> None:
        self.reading.problem("spaces-around-equals", command.line, None,
                             "spaces around = : the shell makes separate words of it", "write NAME=value")  # fmt: skip
