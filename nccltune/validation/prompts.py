"""Prompts of the load: a user's own, made English text, or token ids where the server has no tokenizer."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nccltune.errors import InputError

_MAX_BYTES = 64 * 1024 * 1024
_WORDS_PER_TOKEN = 0.75  # English; the prompt's real length is read back from the server
_TOPICS = (
    "how tides follow the moon", "why bread rises", "how a bicycle stays upright", "what a compiler does with a loop", "how vaccines teach the body",
    "why the sky turns red at dusk", "how to plan a vegetable garden", "what makes a bridge sway", "how a library lends digital books",
    "why rivers meander", "how a violin makes its tone", "what happens when a star runs out of fuel",
)  # fmt: skip
_FILLER = (
    "The notes below were taken by several people and partly repeat each other.", "Some of them disagree, and the order in which they were written is not known.",
    "A reader who has little time should still be able to follow the main line.", "Where a number is given, it was read from an instrument or from a table.",
    "The last part lists what was tried without success.", "Nobody has checked the spelling of the names.",
)  # fmt: skip


def read_prompts(path: Path) -> list[dict[str, Any]]:
    """Read one prompt a line: text, or a JSON object with ``text``, ``prompt`` or ``input_ids``."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{path} is larger than 64 MiB", "", "a few dozen prompts are enough")
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", "", "check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}", str(error), "give a UTF-8 text file") from error
    prompts = [_prompt(line, f"{path}:{n}") for n, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise InputError(f"{path} has no prompts", "it is empty", "write one prompt a line")
    return prompts


def make_prompts(num: int, num_tokens: int, *, as_ids: bool, seed: int) -> list[dict[str, Any]]:
    """Make ``num`` different prompts of about ``num_tokens``; as ids they say nothing, which only suits a fixed acceptance."""
    rng = random.Random(seed)
    if as_ids:
        # Below every vocabulary, above the special tokens that usually come first.
        return [{"input_ids": [rng.randrange(200, 7900) for _ in range(num_tokens)]} for _ in range(num)]
    return [{"text": _text(rng, num_tokens)} for _ in range(num)]


def take(prompts: Sequence[dict[str, Any]], num: int, start: int) -> list[dict[str, Any]]:
    """Take ``num`` prompts from ``start`` on, over again from the first where they end."""
    return [prompts[(start + i) % len(prompts)] for i in range(num)]


def _text(rng: random.Random, num_tokens: int) -> str:
    ask = f"Explain {rng.choice(_TOPICS)}, step by step, with an example a reader can try, and then compare it with {rng.choice(_TOPICS)}."
    words, filler = len(ask.split()), []
    while words < num_tokens * _WORDS_PER_TOKEN:
        sentence = f"Note {rng.randrange(1000)}. {rng.choice(_FILLER)}"
        filler.append(sentence)
        words += len(sentence.split())
    return " ".join([*filler, ask])


def _prompt(line: str, where: str) -> dict[str, Any]:
    if not line.lstrip().startswith("{"):
        return {"text": line.strip()}
    try:
        document = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where} is not JSON", str(error), "correct the line") from error
    ids, text = document.get("input_ids"), document.get("text", document.get("prompt"))
    if isinstance(ids, list) and ids and all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        return {"input_ids": ids}
    if isinstance(text, str) and text.strip():
        return {"text": text}
    raise InputError(f"{where} has no prompt", "expected text, prompt or input_ids", "correct the line")
