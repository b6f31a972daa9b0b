"""Write the parts of the documentation that can be computed: ``make docs``; with --check, only say what is stale.

Between ``<!-- KIND ARGUMENT -->`` and ``<!-- end -->`` a Markdown file holds generated text: ``fields`` of a schema, the ``rooms`` of
the package, the ``output`` of a command. ``docs/cli-reference.md`` is generated whole, from the same objects as --help.
"""

import ast
import importlib
import inspect
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import click
from pydantic import BaseModel

from nccltune.cli import COMMANDS, _variables
from nccltune.errors import EXIT_OK, EXIT_QUALITY

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = Path("docs/cli-reference.md")
WITH_BLOCKS = (Path("README.md"), Path("docs/quickstart.md"), Path("docs/files.md"), Path("docs/architecture.md"))
_BLOCK = re.compile(r"(<!-- (fields|rooms|output)(?:: ([^>]+?))? -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_DATE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC")
_RUN = "import sys; sys.argv[0] = 'nccltune'; from nccltune.cli import main; main()"
_COMMON = ("json", "quiet", "verbose", "debug", "help")


def documents() -> dict[Path, str]:
    """Every file with generated parts, as it should read."""
    found = {REFERENCE: cli_reference()}
    for path in WITH_BLOCKS:
        text = (ROOT / path).read_text(encoding="utf-8")
        found[path] = _BLOCK.sub(lambda m: m[1] + _block(m[2], m[3] or "") + m[5], text)
    return found


def stale() -> list[Path]:
    """Files that do not read as they should. Digits of command output may differ by rounding."""
    return [p for p, text in documents().items() if not _same((ROOT / p).read_text(encoding="utf-8"), text)]


def _block(kind: str, argument: str) -> str:
    writers = {"fields": fields_table, "rooms": rooms_table, "output": command_output}
    return writers[kind](*([argument] if argument else []))


# -- the command line ----------------------------------------------------------------------------------------------


def cli_reference() -> str:
    """Every command with its help, examples and options."""
    out = io.StringIO()
    out.write("# Command line\n\nWritten by `make docs` from what `--help` prints; do not edit.\n\n")
    out.write(
        "Values come from, strongest first: the command line, the variable beside each option, `nccltune.toml` (the long name of the\n"
    )
    out.write(
        "option as key, in the table of its command: [files](files.md#nccltunetoml)), the default. `nccltune config show` says which.\n"
    )
    out.write("Every command that answers has these, and all of them have `-h`, `--help`:\n\n")
    sample = _variables.load("predict")
    out.write(
        _options_table(
            ("predict",), [o for o in _options(sample) if _variables.long_name(o) in _COMMON], variables=False
        )
    )
    out.write("\nVariables for all commands:\n\n| variable | meaning |\n|---|---|\n")
    out.writelines(f"| `{name}` | {_cell(meaning)} |\n" for name, meaning in _variables.GENERAL.items())
    for name in COMMANDS:
        for path, command in _variables.walk(_variables.load(name), (name,)):
            out.write(_command(path, command))
    return out.getvalue()


def _command(path: tuple[str, ...], command: click.Command) -> str:
    text, examples = _help(command)
    arguments = [f" {(a.metavar or a.human_readable_name)}" for a in command.params if isinstance(a, click.Argument)]
    usage = f"nccltune {' '.join(path)}{' [OPTIONS]' if not isinstance(command, click.Group) else ' COMMAND'}{''.join(arguments)}"
    own = [o for o in _options(command) if _variables.long_name(o) not in _COMMON]
    parts = [f"\n{'#' * (1 + len(path))} {' '.join(path)}\n", f"`{usage}`\n", f"{text}\n", f"```\n{examples}\n```\n"]
    return "\n".join(parts) + (f"\n{_options_table(path, own)}" if own else "")


def _help(command: click.Command) -> tuple[str, str]:
    """The text of a command's help, and its example block."""
    prose, _, rest = inspect.cleandoc(command.help or "").partition("\b\n")
    examples, _, more = rest.partition("\n\n")
    examples = re.sub(r"(?<=\S) {2,}(?=\S)", lambda m: f"{m[0]}# ", examples)  # a remark, as a shell would take it
    return " ".join(f"{prose}\n{more}".split()), examples.strip()


def _options(command: click.Command) -> list[click.Option]:
    return [p for p in command.params if isinstance(p, click.Option)]


def _options_table(path: tuple[str, ...], options: list[click.Option], *, variables: bool = True) -> str:
    lines = ["| option | meaning | variable |\n|---|---|---|\n" if variables else "| option | meaning |\n|---|---|\n"]
    for option in options:
        spelling = ", ".join(f"`{name}`" for name in [*sorted(option.opts, key=len), *option.secondary_opts])
        spelling += f" {_metavar(option)}" if _metavar(option) else ""
        variable = f" `{_variables.variable_name(path, option)}` |" if variables else ""
        lines.append(f"| {spelling} | {_cell(_meaning(option))} |{variable}\n")
    return "".join(lines)


def _metavar(option: click.Option) -> str:
    if option.is_flag or option.count:
        return ""
    if isinstance(option.type, click.Choice):
        return " \\| ".join(f"`{choice}`" for choice in option.type.choices)
    return f"`{option.metavar or option.type.name.upper().removesuffix(' RANGE')}`"


def _meaning(option: click.Option) -> str:
    notes = ["required"] if option.required else []
    if option.show_default and option.default is not None:
        value = option.default if not isinstance(option.default, bool) else str(option.default).lower()
        notes.append(f"default: {value}")
    if isinstance(option.type, click.IntRange | click.FloatRange):
        low, high = option.type.min, option.type.max
        notes.append(f"{low} to {high}" if low is not None and high is not None else f"at least {low}")
    if option.multiple and "repeat" not in (option.help or "").lower():
        notes.append("repeatable")
    return (option.help or "") + (f" [{'; '.join(notes)}]" if notes else "")


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").split())


# -- file formats ----------------------------------------------------------------------------------------------------


def fields_table(name: str) -> str:
    """The fields of a schema: ``run.Manifest`` is ``nccltune.schemas.run.Manifest``."""
    module, _, attribute = name.partition(".")
    model: type[BaseModel] = getattr(importlib.import_module(f"nccltune.schemas.{module}"), attribute)
    lines = ["| field | type | default | meaning |\n|---|---|---|---|\n"]
    for field, info in model.model_fields.items():
        default = "required" if info.is_required() else _default(info.get_default(call_default_factory=True))
        lines.append(
            f"| `{field}` | {type_text(info.annotation)} | {default} | {_cell(info.description or '').replace('``', '`')} |\n"
        )
    return "".join(lines)


def type_text(annotation: object) -> str:
    """A type as a reader of JSON or TOML sees it."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is type(None):
        return "null"
    if origin is typing.Literal:
        return " \\| ".join(f"`{value or '(empty)'}`" for value in args)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(type_text(arg) for arg in args)
    if origin is list:
        return f"list of {type_text(args[0])}"
    if origin is tuple:
        return f"[{', '.join(type_text(arg) for arg in args)}]"
    if origin is dict:
        return f"object: {type_text(args[1])}"
    plain = {str: "text", int: "integer", float: "number", bool: "boolean", typing.Any: "any"}
    return plain.get(annotation, getattr(annotation, "__name__", str(annotation)))  # type: ignore[call-overload]


def _default(value: object) -> str:
    if value is None:
        return "null"
    if value in ("", [], {}) and not isinstance(value, bool):
        return "empty"
    if isinstance(value, BaseModel):
        return "those of its table"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


# -- rooms -----------------------------------------------------------------------------------------------------------


def rooms_table() -> str:
    """Layers of the import contract from the top, each room with the first sentence of its docstring."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(c["layers"] for c in contracts if c["type"] == "layers")
    lines = ["| layer | room | what it is for |\n|---|---|---|\n"]
    for number, layer in enumerate(layers, 1):
        for room in (part.strip() for part in layer.split("|")):
            lines.append(f"| {number} | `{room.removeprefix('nccltune.')}` | {_purpose(room)} |\n")
    return "".join(lines)


def _purpose(room: str) -> str:
    path = ROOT / room.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = " ".join((ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split())
    text = re.sub(r":\w+:`([^`]+)`", r"`\1`", text).replace("``", "`")
    return _cell(re.split(r"(?<=[.]) (?=[A-Z])", text)[0])


# -- output of commands ----------------------------------------------------------------------------------------------


def command_output(command: str) -> str:
    """What a command prints on stdout, under the command, as a code block."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL", "NO_COLOR", "FORCE_COLOR"))}
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *shlex.split(command)[1:]],
        capture_output=True, text=True, check=False, cwd=ROOT, env={**kept, "XDG_CONFIG_HOME": os.devnull},
    )  # fmt: skip
    if done.returncode not in (EXIT_OK, EXIT_QUALITY):
        sys.exit(f"{command} exits with {done.returncode}: {done.stderr}")
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    return "```\n" + "\n".join([f"$ {command}", *lines]) + "\n```\n"


def _same(old: str, new: str) -> bool:
    """Whether two texts differ at most in dates and the last digits of numbers: other versions of numpy round otherwise."""
    words = [list(_words(_DATE.sub("", text))) for text in (old, new)]
    return len(words[0]) == len(words[1]) and all(a == b or _close(a, b) for a, b in zip(*words, strict=True))


def _words(text: str) -> Iterator[str]:
    return (m[0] for m in re.finditer(r"\d+\.\d+|\S", text))


def _close(a: str, b: str) -> bool:
    try:
        return abs(float(a) - float(b)) <= 0.01 * abs(float(b)) + 10.0 ** -len(b.partition(".")[2]) * 1.01
    except ValueError:
        return False


def main() -> None:
    """Write what is stale, or name it and exit 1 with --check."""
    if "--check" in sys.argv[1:]:
        if found := stale():
            sys.exit(f"stale, run make docs: {', '.join(map(str, found))}")
        return
    for path, text in documents().items():
        (ROOT / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
