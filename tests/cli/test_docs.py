"""The documentation cannot lie: generated parts are current, commands in it parse, links lead somewhere, examples work."""

import importlib.util
import re
import shlex
import textwrap
import tomllib
from pathlib import Path

import click
import pytest

from nccltune import errors
from nccltune.cli import COMMANDS, _config, _variables, cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = sorted((ROOT / "nccltune").rglob("*.py"))
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page_name(path):
    return str(path.relative_to(ROOT)) if isinstance(path, Path) else None


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_parts_are_current(generate):
    stale = [str(path) for path in generate.stale()]
    assert stale == [], "run make docs"


def test_a_stale_page_is_seen_and_rounding_is_not(generate):
    assert generate._same("a 18.60 ms (2026-11-30 00:19 UTC)", "a 18.61 ms (2027-01-01 10:00 UTC)")
    assert not generate._same("a 18.60 ms", "a 19.60 ms")
    assert not generate._same("| `--model` |", "| `--models` |")
    assert not generate._same("one", "one two")


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (str, "text"),
        (int | None, "integer or null"),
        (list[float], "list of number"),
        (dict[str, bool], "object: boolean"),
    ],
)
def test_types_are_named_as_a_reader_of_json_sees_them(generate, annotation, text):
    assert generate.type_text(annotation) == text


# -- commands ------------------------------------------------------------------------------------------------------


def command_lines(text):
    """Each call of nccltune in a block of shell lines, as a list of words after ``nccltune``."""
    for line in text.splitlines():
        if "nccltune " not in line:
            continue
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
        while "nccltune" in words:
            rest = words[words.index("nccltune") + 1 :]
            end = next((i for i, word in enumerate(rest) if re.fullmatch(r"[|&;<>()]+", word)), len(rest))
            yield rest[:end]
            words = rest[end:]


def parse(words):
    """Parse a call as the command line would; raises click's UsageError for what does not exist."""
    context = click.Context(cli, info_name="nccltune", **cli.context_settings)
    command, parent = cli, None
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        found = command.get_command(context, name)
        if not found:
            raise click.UsageError(f"no command {name}")
        command, parent, context = found, context, click.Context(found, info_name=name, parent=context)
    if rest not in (["--help"], ["-h"]):
        command.make_context(context.info_name, rest, parent=parent)


def blocks(page):
    return [
        body for language, body in _FENCE.findall(page.read_text(encoding="utf-8")) if language in ("", "sh", "bash")
    ]


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_command_line_of_the_documentation_exists(page):
    for body in blocks(page):
        if body.startswith("$ "):  # a call and its output
            body = body.partition("\n")[0]
        for words in command_lines(body):
            try:
                parse(words)
            except click.UsageError as error:
                pytest.fail(f"nccltune {shlex.join(words)}: {error.format_message()}")


def test_command_lines_that_do_not_exist_are_seen():
    found = list(
        command_lines("$ FOO=1 nccltune predict --draft-tokens 3 | jq . && nccltune scan -o run > x  # nccltune no")
    )
    assert found == [["predict", "--draft-tokens", "3"], ["scan", "-o", "run"]]
    for words in (
        ["frobnicate"],
        ["predict"],
        ["predict", "--draft-token", "3"],
        ["scan", "--backend", "mpi"],
        ["models", "rm"],
    ):
        with pytest.raises(click.UsageError):
            parse(words)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_in_help_exist(name):
    for path, command in _variables.walk(_variables.load(name), (name,)):
        block = (command.help or "").partition("\b\n")[2].partition("\n\n")[0]
        lines = [
            re.split(r"\s{2,}", line.strip())[0] for line in block.splitlines()
        ]  # a remark follows after two spaces
        found = list(command_lines("\n".join(lines)))
        assert found, path
        for words in found:
            parse(words)


# -- links and words -------------------------------------------------------------------------------------------------


def anchors(path):
    """Headings as GitHub links to them."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page):
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+://", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path), target


def test_pages_that_code_and_help_speak_of_exist():
    named = {name for path in SOURCES for name in re.findall(r"docs/[\w-]+\.md", path.read_text(encoding="utf-8"))}
    missing = sorted(name for name in named if not (ROOT / name).is_file())
    assert missing == []


def test_every_page_is_reached_from_the_readme():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    reached = set(re.findall(r"\((docs/[\w-]+\.md)", text))
    assert reached == {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}


def test_every_schema_is_in_the_page_of_files():
    text = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
    written = {
        name for path in SOURCES for name in re.findall(r'"(nccltune\.[a-z_]+)"', path.read_text(encoding="utf-8"))
    }
    schemas = written - {f"nccltune.{path.stem}" for path in (ROOT / "nccltune").iterdir()} - {"nccltune.toml"}
    schemas |= {f"nccltune.{kind}" for kind in ("model", "drafter", "topology", "fit", "plan", "check")}
    assert sorted(name for name in schemas if f"`{name}`" not in text) == []


def test_every_room_is_in_the_contract_and_so_on_the_page_of_rooms():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(c["layers"] for c in contracts if c["type"] == "layers")
    rooms = {part.strip().removeprefix("nccltune.") for layer in layers for part in layer.split("|")}
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for path in (ROOT / "nccltune").iterdir():
        if (
            path.name.startswith(("_", "."))
            or (path.is_dir() and not (path / "__init__.py").is_file())
            or path.name == "py.typed"
        ):
            continue
        assert f"`{path.stem}`" in text, path.name
        assert path.stem in rooms | {"reference"}, path.name


def test_the_readme_names_every_command_and_claims_none_that_is_not_there():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tour, _, status = text.partition("## Status")
    assert [
        name for name in COMMANDS if not re.search(rf"nccltune {name}\b|`{name}\b|\*\*{name.capitalize()}\*\*", tour)
    ] == []
    missing = re.findall(r"`(\w+)`", status.partition("Not there yet:")[2].partition(".")[0])
    assert [name for name in missing if name in COMMANDS] == []


def test_exit_codes_of_the_readme_are_all_and_only_ours():
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Exit codes")[2].partition("\n## ")[0]
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert codes == {value for name, value in vars(errors).items() if name.startswith("EXIT_")}


# -- examples --------------------------------------------------------------------------------------------------------


def example(page, language):
    found = [
        body for kind, body in _FENCE.findall((ROOT / "docs" / page).read_text(encoding="utf-8")) if kind == language
    ]
    assert len(found) == 1
    return found[0]


def test_the_example_configuration_is_accepted(tmp_path, monkeypatch):
    (tmp_path / "nccltune.toml").write_text(example("files.md", "toml"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NCCLTUNE_CONFIG", raising=False)
    assert _config.default_map(None)["scan"]["proto"] == "LL,Simple"


def test_the_example_points_are_read():
    from nccltune.parse.points import parse_points

    points = parse_points(example("files.md", "csv"), "files.md")
    assert [point.label for point in points] == ["decode:1:1 seed", "verify:1:3 seed", "decode:1:1 base"]


def test_the_python_example_runs(capsys):
    exec(compile(textwrap.dedent(example("architecture.md", "python")), "architecture.md", "exec"), {})
    assert float(capsys.readouterr().out) > 0
