"""Finding a model's folder from what a user gives: a folder, or a name on the model hub."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crossknn.errors import ModelNotFound
from crossknn.optional import import_extra

HUB_TIMEOUT = 10.0  # seconds to wait for the hub's first answer
OTHER_FORMATS = ["onnx/*", "openvino/*", "*.onnx", "*.h5", "*.msgpack", "*.ot", "*.gguf", "*.md"]


def find_model(name: str | os.PathLike[str]) -> Path:
    """The folder of a model; a hub name is found where it was downloaded before, or downloaded now."""
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


def _find_on_hub(name: str) -> Path:
    hub = import_extra("huggingface_hub", extra="models")
    try:
        return _snapshot(hub, name, local_files_only=True)
    except (OSError, ValueError):
        pass  # never downloaded
    try:
        # One question without the client's retries, so that no network means an answer at once.
        hub.HfApi().model_info(name, timeout=HUB_TIMEOUT)
        return _snapshot(hub, name)
    except Exception as error:  # the HTTP library behind the client, and so its errors, changes with versions
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelNotFound(
            f"{name!r} is neither a folder nor a model that could be fetched from the hub ({reason}). Without a "
            "connection, save the model elsewhere with save_pretrained (model and tokenizer), copy that folder here, "
            "and give its path."
        ) from error


def _snapshot(hub: Any, name: str, **options: Any) -> Path:
    folder = Path(hub.snapshot_download(name, ignore_patterns=[*OTHER_FORMATS, "*.bin"], **options))
    if not any(folder.glob("**/*.safetensors")):  # an older model, whose weights have no other format
        folder = Path(hub.snapshot_download(name, ignore_patterns=OTHER_FORMATS, **options))
    return folder


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing one while it loads weights."""
    logging = import_extra("transformers.utils.logging", extra="models")
    drawn = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if drawn:
            logging.enable_progress_bar()
