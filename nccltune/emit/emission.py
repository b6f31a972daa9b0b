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
from nccltune.outputs import check_output, is_ours
from nccltune.schemas.model import Model
from nccltune.store import Run, write_text

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
    is_folder = options.format == "tuner-plugin"
    if is_folder:
        _check_folder(output, force=options.force)
    elif output is not None:
        check_output(Path(output), ours=_is_ours, force=options.force)
    source = load_source(run, options, model)
    document = build(source, options)
    text = module.write(document)
    if output is not None and is_folder:
        document = _write_folder(Path(output).absolute(), document, text)
    elif output is not None:
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


def _is_ours(head: bytes) -> bool:
    return MARK.encode() in head or is_ours(head) or head.startswith(b"--")


def _check_folder(output: str | Path | None, *, force: bool) -> None:
    """Raise InputError where a tuner plugin cannot go: it is a folder of three files."""
    from nccltune.emit.tuner_plugin import ENV_FILE, POLICY_FILE

    if output is None:
        why = "it writes a library, a policy and an env file"
        raise InputError("tuner-plugin needs a folder", why, "give one with -o DIR")
    folder = Path(output)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is no folder", "tuner-plugin writes three files", "give a folder with -o DIR")
    if not folder.parent.is_dir():
        raise InputError(f"cannot write {folder}", f"the folder {folder.parent} does not exist", "make it first")
    for name in (POLICY_FILE, ENV_FILE):
        if folder.is_dir():
            check_output(folder / name, ours=_is_ours, force=force)


def _write_folder(folder: Path, document: Document, policy: str) -> Document:
    """Build the plugin and write what it reads; the env file comes last, so that it never names what is not there."""
    from nccltune.emit.tuner_plugin import ENV_FILE, POLICY_FILE, env_file, located
    from nccltune.tuner import build_plugin

    document = located(document, folder)
    env = env_file(document)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise NccltuneError(f"cannot make {folder}", error.strerror or str(error), "choose another -o") from error
    build_plugin(folder, compiler=os.environ.get("CC") or "cc")
    write_text(folder / POLICY_FILE, policy)
    write_text(folder / ENV_FILE, env)
    return document
