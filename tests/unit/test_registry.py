"""Finding files: names, aliases, paths, the order of folders, broken files, and writing new ones."""

import pytest

from nccltune import registry
from nccltune.errors import InputError
from nccltune.parse.toml_writer import to_toml


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Keep the user's real folder out of the tests."""
    monkeypatch.delenv("NCCLTUNE_DATA_PATH", raising=False)
    monkeypatch.setattr(registry, "user_root", lambda: tmp_path / "user")
    return tmp_path / "user"


def test_every_shipped_file_loads_under_its_name_and_aliases():
    for kind, load in (("model", registry.load_model), ("drafter", registry.load_drafter)):
        found = registry.names(kind)
        assert found
        for name in found:
            record = load(name)
            assert record.name == name, "the name inside is the file's name"
            assert record.source
            for alias in record.aliases:
                assert load(alias).name == name


def test_aliases_are_not_claimed_twice():
    for kind, load in (("model", registry.load_model), ("drafter", registry.load_drafter)):
        names = [n.lower() for name in registry.names(kind) for n in {name, *load(name).aliases}]
        assert len(names) == len(set(names))


def test_draft_heads_fit_their_targets_and_the_models_that_use_them():
    for name in registry.names("drafter"):
        drafter = registry.load_drafter(name)
        target = registry.load_model(drafter.target)
        assert (drafter.target_hidden_size, drafter.vocab_size) == (target.hidden_size, target.vocab_size)
        assert drafter.draft_vocab_size <= drafter.vocab_size
    for name in registry.names("model"):
        model = registry.load_model(name)
        if model.default_drafter:
            drafter = registry.load_drafter(model.default_drafter)
            assert (drafter.target_hidden_size, drafter.vocab_size) == (model.hidden_size, model.vocab_size)


def test_names_ignore_case_and_unknown_ones_suggest():
    assert registry.load_model("OPENAI/GPT-OSS-120B").name == "gpt-oss-120b"
    with pytest.raises(InputError, match=r"did you mean .*kimi-k2\.5"):
        registry.load_model("kimi-k25x")


def test_user_files_come_first_and_extra_folders_before_them(own_folder, tmp_path, monkeypatch):
    model = registry.load_model("llama-3.1-8b")
    registry.add_file("model", "llama-3.1-8b", to_toml(model.model_copy(update={"title": "mine"})))
    assert registry.load_model("llama-3.1-8b").title == "mine"
    extra = tmp_path / "extra"
    other = to_toml(model.model_copy(update={"title": "extra"}))
    registry.add_file("model", "llama-3.1-8b", other, path=extra / "models" / "llama-3.1-8b.toml")
    monkeypatch.setenv("NCCLTUNE_DATA_PATH", str(extra))
    assert registry.load_model("llama-3.1-8b").title == "extra"


@pytest.mark.parametrize(
    "content", [b"", b"not toml [", b"\xff\xfe", b'schema = "nccltune.topology"\nschema_version = 1\n']
)
def test_a_broken_file_is_one_error_and_hides_nothing(own_folder, content):
    folder = own_folder / "models"
    folder.mkdir(parents=True)
    (folder / "broken.toml").write_bytes(content)
    with pytest.raises(InputError, match=r"broken\.toml"):
        registry.load_model("broken")
    assert registry.load_model("moonshotai/Kimi-K2.5").name == "kimi-k2.5"


def test_a_typo_in_a_field_is_named(tmp_path):
    text = to_toml(registry.load_model("llama-3.1-8b")).replace("hidden_size", "hiden_size", 1)
    path = tmp_path / "typo.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"hid+en_size"):
        registry.load_model(str(path))


def test_adding_never_overwrites_without_force(own_folder):
    text = to_toml(registry.load_model("llama-3.1-8b"))
    path = registry.add_file("model", "mine", text)
    assert path == own_folder / "models" / "mine.toml"
    with pytest.raises(InputError, match="exists"):
        registry.add_file("model", "mine", text)
    assert registry.add_file("model", "mine", text, force=True) == path
    assert [p.name for p in path.parent.iterdir()] == ["mine.toml"]


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "x.toml", "a b", "-x", "x" * 300, "\u00fc"])
def test_names_that_are_no_file_names_are_refused(name):
    with pytest.raises(InputError, match="not a name"):
        registry.add_file("model", name, "")


def test_text_that_does_not_load_is_not_kept(own_folder):
    with pytest.raises(InputError):
        registry.add_file("model", "bad", 'schema = "nccltune.model"\nschema_version = 1\n')
    assert list((own_folder / "models").iterdir()) == []
