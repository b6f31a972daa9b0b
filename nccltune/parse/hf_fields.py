"""Read single fields of a Hugging Face config.json: alternative spellings, wrong types, one clear error."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from nccltune.errors import InputError
from nccltune.schemas.common import first_problem

_NESTED = ("text_config", "llm_config", "language_config")
_LARGEST = 10**9  # no count or width in a config is near this; more is a broken file


def text_part(document: object) -> dict[str, Any]:
    """Return the language model's part of a config.json; multimodal files nest it."""
    if not isinstance(document, Mapping):
        raise InputError(
            "this is not a Hugging Face config.json",
            f"it holds a {type(document).__name__}, not an object",
            "give the config.json that lies beside the model's weights",
        )
    for key in _NESTED:
        nested = document.get(key)
        if isinstance(nested, Mapping):
            outer = {k: v for k, v in document.items() if k in ("quantization_config", "tie_word_embeddings")}
            kind = f"{document.get('model_type', '')}_text"
            return {"model_type": kind, **outer, **nested}
    return dict(document)


@dataclass
class Fields:
    """The fields of one config with the notes collected while reading them."""

    values: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def has(self, *names: str) -> bool:
        """True if one of the spellings is present and not null."""
        return any(self.values.get(name) is not None for name in names)

    def count(self, *names: str, default: int = 0) -> int:
        """Read a whole number >= 0 under the first spelling present; null and absent give the default."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            whole = not isinstance(value, bool) and isinstance(value, int | float) and value == value
            if not whole or not 0 <= value <= _LARGEST or value != int(value):
                raise InputError(
                    f"{name} is {value!r}", "a whole number that is not negative was expected", "correct the file"
                )
            return int(value)
        return default

    def required(self, *names: str) -> int:
        """Read a whole number >= 1; an absent one is collected in ``missing`` and given as 1 until the check."""
        value = self.count(*names, default=-1)
        if value == 0:
            raise InputError(f"{names[0]} is 0", "a positive whole number was expected", "correct the file")
        if value < 0:
            self.missing.append(" or ".join(names))
            return 1
        return value

    def flag(self, name: str) -> bool:
        """Read a boolean; absent and null are False."""
        value = self.values.get(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise InputError(f"{name} is {value!r}", "true or false was expected", "correct the file")

    def text(self, name: str) -> str:
        """Read a string; anything else is an empty one."""
        value = self.values.get(name)
        return value if isinstance(value, str) else ""

    def items(self, name: str) -> list[Any]:
        """Read a list; absent and null are an empty one."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise InputError(f"{name} is {value!r}", "a list was expected", "correct the file")
        return value

    def architectures(self) -> Iterator[str]:
        """Class names listed under ``architectures``."""
        yield from (a for a in self.items("architectures") if isinstance(a, str))

    def check_complete(self, what: str) -> None:
        """Raise InputError naming every required field that was absent."""
        if self.missing:
            raise InputError(
                f"this config.json cannot be read as {what}",
                f"missing: {', '.join(self.missing)}",
                "give the config.json of the model itself (not of a tokenizer, adapter or quantizer)",
            )


def validated(cls: Any, values: dict[str, Any]) -> Any:
    """Build a record; a figure that the schema refuses becomes an InputError naming the field."""
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        raise InputError(
            f"this config.json does not describe a {cls.__name__.lower()}",
            first_problem(error),
            "check the file's figures",
        ) from error
