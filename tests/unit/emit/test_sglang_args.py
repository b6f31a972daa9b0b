"""Engine flags, read back by an argument parser with SGLang's own option names."""

import argparse

import pytest

from nccltune.emit import sglang_args
from nccltune.emit.document import Document
from nccltune.emit.sglang_args import speculation
from nccltune.errors import InputError


def parser():
    """The options of sglang.launch_server that are emitted, with the types of SGLang 0.5.14's server_args."""
    result = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    result.add_argument(
        "--speculative-algorithm", choices=["EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH"]
    )
    result.add_argument("--speculative-draft-model-path", type=str)
    for name in ("num-steps", "eagle-topk", "num-draft-tokens"):
        result.add_argument(f"--speculative-{name}", type=int)
    result.add_argument("--disable-custom-all-reduce", action="store_true")
    return result


def test_argparse_reads_the_triple():
    spec = speculation(4, None, 1, "org/draft-eagle3")
    text = sglang_args.write(Document(speculation=spec, engine_flags=("--disable-custom-all-reduce",)))
    found = parser().parse_args(text.split())
    assert (found.speculative_algorithm, found.speculative_draft_model_path) == ("EAGLE3", "org/draft-eagle3")
    assert (found.speculative_num_steps, found.speculative_eagle_topk, found.speculative_num_draft_tokens) == (3, 1, 4)
    assert found.disable_custom_all_reduce
    assert sglang_args.parse(text)["--speculative-num-draft-tokens"] == "4"
    assert "#" not in text


def test_plain_decode_has_no_flags():
    assert speculation(1, None, 1, None) is None
    assert sglang_args.write(Document()) == ""


@pytest.mark.parametrize(
    ("draft", "steps", "topk"), [(4, 2, 1), (0, None, 1), (1, 3, 1), (8, None, 4), (22, 2, 4), (4, 0, 1), (4, 3, 0)]
)
def test_triples_that_sglang_changes_or_refuses(draft, steps, topk):
    with pytest.raises(InputError):
        speculation(draft, steps, topk, None)


def test_a_tree_holds_topk_plus_steps_minus_one_times_topk_squared_nodes():
    # 4 + 1 x 16 = 20 nodes besides the root
    assert speculation(21, 2, 4, None).num_draft_tokens == 21


@pytest.mark.parametrize("path", ["a b", "a*", "a'b", "a\nb", "$HOME/x"])
def test_draft_paths_that_do_not_survive_word_splitting(path):
    with pytest.raises(InputError, match="draft model"):
        sglang_args.write(Document(speculation=speculation(4, None, 1, path)))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            "--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5",
            "triple",
        ),
        ("--speculative-algorithm EAGLE3 --speculative-num-steps 3", "triple"),
        ("--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4", "no-algorithm"),
        (
            "--speculative-algorithm EAGLE3 --speculative-num-steps x --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
            "not-a-number",
        ),
        ("--speculative-algorithm EAGLE3 # comment", "comment"),
    ],
)
def test_lint(text, code):
    assert code in [f.code for f in sglang_args.read(text + "\n").findings]
