"""A model or drafter given as a Hugging Face config.json (or the folder that holds it) instead of one of our files."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from nccltune import catalog
from nccltune.validation.predictor import Subject


@contextlib.contextmanager
def architectures(subject: Subject) -> Iterator[Subject]:
    """Yield the subject with every config.json turned into a model file, which lives as long as the context."""
    model, drafter = _config(subject.model), _config(subject.drafter)
    if model is None and drafter is None:
        yield subject
        return
    with tempfile.TemporaryDirectory(prefix="nccltune-") as folder:
        if model is not None:
            path = Path(folder) / f"{_name(model)}.toml"
            catalog.add(model, name=path.stem, output=path)
            subject = replace(subject, model=str(path))
        if drafter is not None:
            path = Path(folder) / f"{_name(drafter)}-drafter.toml"
            catalog.add(drafter, name=path.stem, target=subject.model, output=path)
            subject = replace(subject, drafter=str(path))
        yield subject


def _config(text: str | None) -> Path | None:
    if text is None:
        return None
    path = Path(text)
    if text.endswith(".json"):
        return path
    inside = path / "config.json"
    return inside if path.is_dir() and inside.is_file() else None


def _name(config: Path) -> str:
    """Name after the folder of a config.json, after the file otherwise."""
    name = config.resolve().parent.name if config.name == "config.json" else config.stem
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in name).strip(".-") or "model"
