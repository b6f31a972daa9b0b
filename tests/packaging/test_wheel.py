"""Build the distributions as a release would, install the wheel aside, and use it far from the clone."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# At the top of a clone; inside the package in a wheel.
DATA = ("models", "topology")


def tree(folder):
    """Files of a folder of the clone, without what running it leaves behind."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist, and the wheel made from it: so both are complete."""
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """A folder with nothing but the wheel in it."""
    target = tmp_path_factory.mktemp("site")
    wheel = next(built.glob("*.whl"))
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-index",
        "--target",
        target,
        wheel,
    ]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.fixture
def use(installed, tmp_path):
    """Run the installed package in an empty folder, as a user without files of their own."""

    def call(*args, code=0, **variables):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL", "PYTHON"))}
        environment = kept | {"PYTHONPATH": str(installed), "XDG_CONFIG_HOME": str(tmp_path / "config"), **variables}
        (tmp_path / "empty").mkdir(exist_ok=True)
        done = subprocess.run(
            [sys.executable, *args],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path / "empty",
            env=environment,
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    return call


def test_the_wheel_holds_every_file_of_the_package_and_its_data(built):
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
        metadata = next(wheel.read(name).decode() for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())
    expected = tree("nccltune") | {f"nccltune/data/{name}" for folder in DATA for name in tree(folder)}
    assert inside == expected
    assert "nccltune/py.typed" in inside
    assert "nccltune/data/models/drafters/kimi-k2.5-eagle3.toml" in inside
    assert "nccltune/data/profiles/kimi-k2.5-rtx-pro-6000-x8.json" in inside
    assert any(name.endswith(".c") for name in inside), "sources of the tuner plugin"
    assert "\n# nccltune\n" in metadata, "the README is the description"
    core = {
        line.split()[1].split(">")[0]
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist") and "extra" not in line
    }
    assert core == {"click", "numpy", "nvidia-ml-py", "pandas", "platformdirs", "psutil", "pydantic", "rich", "scipy"}


def test_the_sdist_is_the_whole_source(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    for folder in ("nccltune", *DATA, "docs", "tests", "benchmarks"):
        assert tree(folder) <= inside, folder
    assert inside >= {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "Makefile",
        "constraints-cpu.txt",
    }


def test_it_is_the_installed_package_that_runs(use, installed):
    assert use("-c", "import nccltune; print(nccltune.__file__)").startswith(str(installed))
    assert (installed / "bin" / "nccltune").is_file()


def names(use, *command, **variables):
    document = json.loads(use("-m", "nccltune", *command, "list", "--json", **variables))
    return {row["name"]: row for row in document[{"models": "models", "topology": "topologies"}[command[0]]]}


def test_models_and_machines_are_found(use, installed):
    assert set(names(use, "models")) == {path.stem for path in (ROOT / "models").glob("*.toml")}
    assert set(names(use, "topology")) == {path.stem for path in (ROOT / "topology").glob("*.toml")}
    shown = json.loads(use("-m", "nccltune", "models", "show", "kimi-k2.5", "--json"))
    assert str(installed) in json.dumps(names(use, "models")["kimi-k2.5"])
    assert shown["allreduces_per_forward"] == 123


def test_predict_and_emit_answer_from_what_is_shipped(use):
    document = json.loads(use("-m", "nccltune", "predict", "--draft-tokens", "3", "--json"))
    row = document["rows"][1]
    # Published: verify 18.67 ms, cycle 19.85 ms.
    assert row["verify_ms"]["value"] == pytest.approx(18.67, rel=0.02)
    assert row["cycle_ms"]["value"] == pytest.approx(19.85, rel=0.02)
    assert "NCCL_PROTO" in use("-m", "nccltune", "emit", "--setting", "seed", "--format", "docker")


def test_what_lies_beside_the_package_is_not_taken_for_its_own(use, installed):
    """A folder called models/ in site-packages belongs to somebody else."""
    other = installed / "models"
    other.mkdir()
    try:
        (other / "other.toml").write_text('schema = "nccltune.model"\n')
        assert "other" not in names(use, "models")
    finally:
        (other / "other.toml").unlink()
        other.rmdir()


def put(folder, title):
    """A machine file in ``folder`` that can be told from the shipped one by its title."""
    text = (ROOT / "topology" / "h200-x2.toml").read_text(encoding="utf-8")
    (folder / "topology").mkdir(parents=True)
    shipped = next(line for line in text.splitlines() if line.startswith("title = "))
    (folder / "topology" / "h200-x2.toml").write_text(text.replace(shipped, f'title = "{title}"'), encoding="utf-8")


def test_user_folders_come_before_the_shipped_files_and_the_first_wins(use, tmp_path):
    put(tmp_path / "config" / "nccltune", "mine")
    found = names(use, "topology")["h200-x2"]
    assert (found["title"], found["origin"]) == ("mine", "user")
    put(tmp_path / "a", "first")
    put(tmp_path / "b", "second")
    both = f"{tmp_path / 'a'}{os.pathsep}{tmp_path / 'b'}"
    assert names(use, "topology", NCCLTUNE_DATA_PATH=both)["h200-x2"]["title"] == "first"
    assert names(use, "topology", NCCLTUNE_DATA_PATH=str(tmp_path / "b"))["h200-x2"]["title"] == "second"
    assert len(names(use, "topology")) == len(list((ROOT / "topology").glob("*.toml"))), "the others are still there"


def test_a_clone_uses_its_own_files(use):
    code = "from nccltune import registry; print(registry.names('model')['kimi-k2.5'])"
    assert use("-c", code, PYTHONPATH=str(ROOT)).strip() == str(ROOT / "models" / "kimi-k2.5.toml")
