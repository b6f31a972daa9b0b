"""Split shell text into commands and words as a POSIX shell does, without running anything: for reading env files."""

from dataclasses import dataclass, field

_SHOWN = 80  # of an expansion, for the message


@dataclass
class Word:
    """One word after quote removal. ``expands``: what the shell would replace at run time (``$HOME``, backticks)."""

    parts: list[str] = field(default_factory=list)
    expands: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The whole word. Kept in parts while it is read: adding to a long text again and again would copy it each time."""
        return "".join(self.parts)


@dataclass
class Command:
    """One simple command and the line it starts on."""

    words: list[Word]
    line: int
    ended_by: str = ""


class UnterminatedError(ValueError):
    """A quote that never closes; ``line`` says where it opened."""

    def __init__(self, line: int) -> None:
        super().__init__(f"the quote opened on line {line} never closes")
        self.line = line


class _Reader:
    """Character reader with the state of one command."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.line = text, 0, 1
        self.commands: list[Command] = []
        self.words: list[Word] = []
        self.word: Word | None = None
        self.start = 1

    def peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def take(self) -> str:
        char = self.text[self.at]
        self.at += 1
        self.line += char == "\n"
        return char

    def current(self) -> Word:
        if self.word is None:
            self.word = Word()
            if not self.words:
                self.start = self.line
        return self.word

    def end_word(self) -> None:
        if self.word is not None:
            self.words.append(self.word)
            self.word = None

    def end_command(self, by: str) -> None:
        self.end_word()
        if self.words:
            self.commands.append(Command(self.words, self.start, by))
        self.words = []


def split_commands(text: str) -> list[Command]:
    """Return the simple commands of ``text``; raises UnterminatedError for an open quote."""
    reader = _Reader(text)
    while reader.peek():
        _step(reader)
    reader.end_command("")
    return reader.commands


def _step(r: _Reader) -> None:
    char = r.take()
    if char in "\n;&|":
        r.end_command(char)
    elif char in " \t":
        r.end_word()
    elif char == "#" and r.word is None:
        while r.peek() and r.peek() != "\n":
            r.take()
    elif char == "\\":
        following = r.take() if r.peek() else "\\"
        if following != "\n":
            r.current().parts.append(following)
    elif char == "'":
        _single(r)
    elif char == '"':
        _double(r)
    else:
        _plain(r, char, r.current())


def _single(r: _Reader) -> None:
    word, opened = r.current(), r.line
    while r.peek() != "'":
        if not r.peek():
            raise UnterminatedError(opened)
        word.parts.append(r.take())
    r.take()


def _double(r: _Reader) -> None:
    word, opened = r.current(), r.line
    while r.peek() != '"':
        if not r.peek():
            raise UnterminatedError(opened)
        char = r.take()
        if char == "\\" and r.peek() and r.peek() in '$`"\\\n':
            following = r.take()
            word.parts.append("" if following == "\n" else following)
        else:
            _plain(r, char, word)
    r.take()


def _plain(r: _Reader, char: str, word: Word) -> None:
    """Add one character that may start an expansion."""
    if char == "`" or (char == "$" and (r.peek().isalnum() or r.peek() in tuple("_{(@*#?$!-"))):
        rest = r.text[r.at - 1 : r.at + _SHOWN].split("\n", 1)[0]
        word.expands.append(rest.split()[0] if rest.split() else char)
    word.parts.append(char)
