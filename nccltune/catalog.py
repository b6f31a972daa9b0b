"""The known models and draft heads together: list them, show one, add one from a Hugging Face config.json."""

from pathlib import Path
from typing import Any

from nccltune import registry
from nccltune.costmodel.describe import drafter_details, drafter_summary, model_details, model_summary
from nccltune.errors import InputError, NccltuneError
from nccltune.parse import hf_config
from nccltune.schemas.model import Drafter, Model


def list_models() -> dict[str, Any]:
    """Return every known model and drafter, one summary each; files that cannot be read become warnings."""
    document: dict[str, Any] = {"schema": "nccltune.models", "schema_version": 1, "models": [], "drafters": []}
    warnings: list[str] = []
    for kind, key in (("model", "models"), ("drafter", "drafters")):
        for name, path in registry.names(kind).items():
            try:
                record = registry.load_file(path, kind)
            except NccltuneError as error:
                warnings.append(str(error))
                continue
            summary = model_summary(record) if isinstance(record, Model) else {}
            summary = drafter_summary(record) if isinstance(record, Drafter) else summary
            document[key].append({**summary, "name": name, "file": str(path)})
    return document | {"warnings": warnings}


def show(name: str, *, num_ranks: int, num_tokens: list[int]) -> dict[str, Any]:
    """Return everything about the model or drafter called ``name`` (file name, alias or path)."""
    try:
        return model_details(registry.load_model(name), num_ranks=num_ranks, num_tokens=num_tokens)
    except InputError as not_a_model:
        try:
            drafter = registry.load_drafter(name)
        except InputError:
            raise not_a_model from None
        return drafter_details(drafter, num_ranks=num_ranks)


def add(
    config: Path,
    *,
    name: str,
    target: str | None = None,
    source: str = "",
    output: Path | None = None,
    force: bool = False,
) -> tuple[Path, Model | Drafter]:
    """Read a config.json and write it as a model file, or as a draft head of ``target``; returns the file and the record."""
    document, origin = hf_config.read_config(config), source or str(config)
    record: Model | Drafter
    if target is None:
        record = hf_config.model_from_config(document, name=name, source=origin)
    else:
        known = registry.load_model(target)
        record = hf_config.drafter_from_config(document, name=name, target=known.name, source=origin)
        hf_config.check_fits(record, known)
    kind = "model" if isinstance(record, Model) else "drafter"
    return registry.add_file(kind, name, hf_config.to_toml(record), path=output, force=force), record
