"""``emit``: load a run, build the document, render it, put it in its place. The only module here that writes files."""

import importlib.metadata
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nccltune import registry
from nccltune.emit import formats, json_text
from nccltune.emit.build import build
from nccltune.emit.document import MARK, Document
from nccltune.emit.grammar import parse_version
from nccltune.emit.request import Options, Source
from nccltune.emit.safety import EnginePath, ll128_by_default
from nccltune.engine_path import EngineOptions, engine_allreduce_path
from nccltune.errors import InputError, NccltuneError
from nccltune.knobs import BASES, Version
from nccltune.schemas.model import Model
from nccltune.store import Run

SCHEMA = "nccltune.emit"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Emitted:
    """The text, and what it was made from."""

    text: str
    document: Document
    format: str
    path: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return one JSON document: the content of the json format, the text and where it was written."""
        body = {**json_text.body(self.document), "schema": SCHEMA, "schema_version": SCHEMA_VERSION}
        return {**body, "format": self.format, "text": self.text, "output": self.path}


def emit(
    run: str | Path | None = None, *, output: str | Path | None = None, model: str | None = None, **fields: Any
) -> Emitted:
    """Make the file; with ``output`` write it too. ``fields`` are those of :class:`nccltune.emit.request.Options`.

    Raises InputError for what cannot be done, QualityError for what should not be done without ``force=True``.
    """
    options = Options(**fields)
    output = None if output is None or str(output) == "-" else output
    module = formats.get(options.format)
    if options.base not in BASES:
        raise InputError(f"'{options.base}' is no base environment", f"known: {', '.join(BASES)}", "choose one")
    if output is not None:
        check_writable(Path(output), force=options.force)
    source = load_source(run, options, model)
    document = build(source, options)
    text = module.write(document)
    if output is not None:
        write_text(Path(output), text)
    return Emitted(text, document, options.format, None if output is None else str(output))


def load_source(run: str | Path | None, options: Options, model: str | None) -> Source:
    """Load what is known about this emission; raises InputError for a run without a fit."""
    if run is None:
        return Source(nccl_at_hand=nccl_at_hand())
    loaded = Run.load(Path(run))
    fit = loaded.load_fit()
    if fit is None:
        raise InputError(f"{run} has no fit yet", "settings are chosen from fitted curves", f"run: nccltune fit {run}")
    name = model or fit.model
    library = loaded.manifest.machine.nccl
    architecture = registry.load_model(name) if name else None
    return Source(
        fit=fit,
        manifest=loaded.manifest,
        measurements=loaded.measurements(),
        bytes_per_token=architecture.hidden_size * architecture.activation_bytes if architecture else None,
        engine_path=_engine_path(loaded, architecture, options),
        nccl_at_hand=nccl_at_hand(),
        nccl_measured=parse_version(library.version) if library is not None else None,
    )


def _engine_path(run: Run, model: Model | None, options: Options) -> EnginePath | None:
    """What SGLang would use on the run's machine; None where the run does not come from GPUs."""
    machine = run.manifest.machine
    if not machine.gpus or run.manifest.backend == "gloo":
        return None
    return engine_allreduce_path(
        "nvlink" if ll128_by_default(machine) else "pcie",
        run.manifest.num_ranks,
        model_architecture=model.hf_architecture if model else None,
        options=EngineOptions(disable_custom_all_reduce=options.disable_custom_all_reduce),
    )


def nccl_at_hand() -> Version | None:
    """Version of the NCCL that torch's wheels brought into this environment, None without one."""
    for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        try:
            return parse_version(importlib.metadata.version(name))
        except (importlib.metadata.PackageNotFoundError, InputError):
            continue
    return None


def check_writable(path: Path, *, force: bool) -> None:
    """Raise InputError for a place that cannot be written, or a file that is not ours (kept unless ``force``)."""
    if path.is_dir():
        raise InputError(f"{path} is a folder", "", "give a file name with -o")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}", f"the folder {path.parent} does not exist", "make it first")
    if path.exists() and not force:
        try:
            with path.open("rb") as file:
                head = file.read(4096)
        except OSError as error:
            raise InputError(
                f"cannot read {path}", error.strerror or str(error), "choose another place with -o"
            ) from error
        ours = MARK.encode() in head or b'"nccltune.' in head or head.startswith(b"--") or not head.strip()
        if not ours:
            raise InputError(
                f"{path} exists and was not written by nccltune",
                "it is kept",
                "choose another -o, or --force to replace it",
            )


def write_text(path: Path, text: str) -> None:
    """Write a whole file; a crash leaves the old one or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise NccltuneError(
            f"cannot write {path}", error.strerror or str(error), "choose another place with -o"
        ) from error
