"""``nccltune models``: tables, one JSON document, adding a config.json, and the promised exit codes."""

import json

import pytest

from nccltune import registry
from nccltune.cli import _errors, cli

CONFIG = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000,
    "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None, "tie_word_embeddings": False,
}  # fmt: skip
HEAD = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_hidden_layers": 1, "intermediate_size": 14336, "vocab_size": 32000,
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Keep the user's real folder, configuration and variables out of the tests."""
    monkeypatch.setattr(registry, "user_root", lambda: tmp_path / "user")
    monkeypatch.delenv("NCCLTUNE_DATA_PATH", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "user"


@pytest.fixture
def run(capsys):
    """Run ``nccltune models ...``; returns exit code, stdout, stderr."""

    def _run(*args):
        code = _errors.run(cli, ["models", *map(str, args)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return _run


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_list_shows_every_model(run):
    code, out, err = run("list")
    assert (code, err) == (0, "")
    for name in [*registry.names("model"), *registry.names("drafter")]:
        assert name in out
    kimi = next(line.split() for line in out.splitlines() if line.startswith("kimi-k2.5 "))
    assert kimi[1:8] == ["61", "7168", "384/8", "1026.4B", "31.7B", "123", "14336"]
    assert "\x1b[" not in out


def test_list_json_is_one_document_and_a_broken_file_is_a_warning(run, own_folder):
    (own_folder / "models").mkdir(parents=True)
    (own_folder / "models" / "broken.toml").write_text("[")
    code, out, err = run("list", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["schema"] == "nccltune.models"
    assert {row["name"] for row in document["models"]} == set(registry.names("model")) - {"broken"}
    assert "broken.toml" in document["warnings"][0]
    assert "broken.toml" in err


def test_show_puts_computed_beside_published(run):
    code, out, _ = run("show", "openai/gpt-oss-120b", "--ranks", 4)
    assert code == 0
    assert "total parameters: 116.8B computed, 116.8B published" in out
    assert "source: " in out
    assert "73 all-reduces" in out


def test_show_json(run):
    code, out, _ = run("show", "kimi-k2.5", "--tokens", "1,3", "--json")
    document = json.loads(out)
    assert code == 0
    assert [row["allreduce_bytes"] for row in document["forwards"]] == [14336, 43008]
    first = document["forwards"][0]
    assert first["weight_bytes"] == pytest.approx(sum(first["weight_bytes_by_part"].values()))
    assert document["record"]["name"] == "kimi-k2.5"
    assert document["published"][0]["what"] == "total"


def test_show_draft_head(run):
    code, out, _ = run("show", "kimi-k2.5-eagle3")
    assert code == 0
    assert "drafts for: kimi-k2.5" in out
    assert json.loads(run("show", "kimi-k2.5-eagle3", "--json")[1])["weight_bytes_by_part"]["fc"] == 3 * 7168**2 * 2


@pytest.mark.parametrize(
    "args",
    [("show", "nonsense"), ("show", "kimi-k2.5", "--ranks", 0), ("show", "kimi-k2.5", "--tokens", "0"), ("shw",)],
)
def test_wrong_usage_is_exit_2_without_traceback(run, args):
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert "Error" in err
    assert "Traceback" not in err


def test_add_then_use(run, config, own_folder):
    code, out, err = run("add", config, "--name", "mine")
    assert (code, err) == (0, "")
    assert str(own_folder / "models" / "mine.toml") in out
    mine, shipped = registry.load_model("mine"), registry.load_model("mixtral-8x7b")
    assert (mine.moe, mine.attention, mine.vocab_size) == (shipped.moe, shipped.attention, shipped.vocab_size)
    assert mine.source == [str(config)]


def test_add_says_when_it_hides_a_known_one(run, config, own_folder):
    code, _, err = run("add", config, "--name", "kimi-k2.5")
    assert code == 0
    assert "the model 'kimi-k2.5' of " in err
    assert "is hidden by it" in err
    assert run("add", config, "--name", "mine")[2] == ""


def test_add_does_not_overwrite(run, config, tmp_path):
    target = tmp_path / "out.toml"
    assert run("add", config, "--name", "mine", "-o", target)[0] == 0
    before = target.read_text()
    code, _, err = run("add", config, "--name", "mine", "-o", target, "--source", "elsewhere")
    assert code == 2
    assert "--force" in err
    assert target.read_text() == before
    assert run("add", config, "--name", "mine", "-o", target, "--source", "elsewhere", "--force")[0] == 0
    assert registry.load_model(str(target)).source == ["elsewhere"]


def test_add_draft_head(run, tmp_path):
    path = tmp_path / "head.json"
    path.write_text(json.dumps(HEAD))
    code, out, _ = run("add", path, "--name", "head", "--drafter", "--target", "mistralai/Mixtral-8x7B-v0.1", "--json")
    assert code == 0
    assert json.loads(out)["kind"] == "drafter"
    assert registry.load_drafter("head").target == "mixtral-8x7b"
    code, _, err = run("add", path, "--name", "head2", "--drafter", "--target", "kimi-k2.5")
    assert code == 2
    assert "does not fit" in err
    assert run("add", path, "--name", "head3", "--drafter")[0] == 2


def test_add_warns_about_what_it_assumed(run, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, "model_type": "newest"}))
    code, _, err = run("add", path, "--name", "new")
    assert code == 0
    assert "newest" in err


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"model_type": "llama"}'])
def test_add_refuses_what_it_cannot_read(run, tmp_path, own_folder, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    code, _, err = run("add", path, "--name", "x")
    assert code == 2
    assert err.startswith("Error")
    assert not (own_folder / "models" / "x.toml").exists()


def test_add_missing_file(run):
    assert run("add", "nowhere.json", "--name", "x")[0] == 2
