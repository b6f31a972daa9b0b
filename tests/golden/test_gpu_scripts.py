"""The scripts for machines with GPUs, as far as they go without one: dry runs over the stored runs, and the model that they make."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nccltune import api
from nccltune.registry import load_model
from nccltune.validation.architecture import architectures
from nccltune.validation.predictor import Subject

ROOT = Path(__file__).parents[2]
DATA = ROOT / "reports" / "2026-11-30-h200-x2" / "data"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two stored runs with a fit each, and a model of 30 GB."""
    path = tmp_path_factory.mktemp("gpu scripts")
    for name in ("p2p", "shm"):
        shutil.copytree(DATA / name, path / name)
        api.fit(path / name)
    run(ROOT / "benchmarks" / "dummy_model.py", path / "models", "--gpus", "2", "--layers", "8")
    return path


def run(script, *args, **env):
    program = [sys.executable] if script.suffix == ".py" else ["bash"]
    done = subprocess.run([*program, str(script), *map(str, args)], capture_output=True, text=True, timeout=120, cwd=ROOT,
                          env={**os.environ, "PYTHON": sys.executable, **{k: str(v) for k, v in env.items()}})  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_the_dummy_model_has_the_messages_of_kimi(folder):
    config = json.loads((folder / "models" / "target" / "config.json").read_text())
    kimi = load_model("kimi-k2.5")
    assert config["hidden_size"] == kimi.hidden_size
    with architectures(Subject(str(folder / "models" / "target"))) as resolved:
        model = load_model(resolved.model)
    assert (model.hidden_size, model.num_layers, model.moe.top_k) == (kimi.hidden_size, 8, kimi.moe.top_k)
    assert (
        json.loads((folder / "models" / "target-eagle3" / "config.json").read_text())["hidden_size"] == kimi.hidden_size
    )


def test_weights_that_do_not_fit_are_refused(tmp_path):
    code, _, err = run(ROOT / "benchmarks" / "dummy_model.py", tmp_path / "m", "--experts", "384")
    assert code == 2
    assert "2084 GB of weights do not fit: 902 GB of 8 GPUs are for them" in err
    assert not (tmp_path / "m").exists()


def test_servers_on_gpus_plans_every_arm(folder):
    code, out, err = run(ROOT / "benchmarks" / "servers_on_gpus.sh", folder / "servers", DRY=1, P2P=folder / "p2p", SHM=folder / "shm",
                         MODEL=folder / "models" / "target", DENSE=folder / "models" / "target", DRAFTS="1,3", BATCHES="1,16")  # fmt: skip
    assert code == 0, err
    totals = [line.split(":")[0] for line in out.splitlines() if "servers to start" in line]
    # With peer access the best setting is the base, so two settings are left; without, there are three.
    assert totals == [f"{n} servers to start, {2 * n} arms (0 done)" for n in (4, 4, 6, 4)]


def test_eight_gpus_plans_its_scans(folder):
    code, out, err = run(ROOT / "benchmarks" / "eight_gpus.sh", folder / "eight", DRY=1, RANKS=8, STEPS="kimi shm ranks nt", TOKENS="1,2")  # fmt: skip
    assert code == 0, err
    assert [line for line in out.splitlines() if line.startswith("== ")] == [f"== {n}" for n in ("kimi", "shm", "ranks2", "ranks4", "nt", "own")]  # fmt: skip
    # 126 settings of the grid, the seed's and the base; 20 settings by name and the base
    assert "512 cases: 128 settings x 2 sizes x 2 timing (in-forward, back-to-back)" in out
    assert out.count("105 cases: 21 settings x 5 sizes x 1 timing (back-to-back)") == 2


def test_a_step_that_does_not_exist_is_refused(tmp_path):
    code, _, err = run(ROOT / "benchmarks" / "eight_gpus.sh", tmp_path, STEPS="kimi2")
    assert (code, err.strip()) == (2, "no step is called 'kimi2'")
