"""Models of sentence-transformers as the library runs them: for unusual models, for training and for saving."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crossknn._imports import import_extra
from crossknn.errors import InputError
from crossknn.models.hub import loading, no_progress_bars
from crossknn.scorers.inference.token_store import Tokenize, Tokens
from crossknn.storage.atomic import sync, temporary_path

PICKLED = ("pytorch_model.bin", "adapter_model.bin")  # and the index of the first, where it has several files
BATCH_SIZE = {"cpu": 32, "cuda": 256}


class LibraryModel:
    """A `SentenceTransformer` with the methods of a `PaddingFreeEncoder`, as far as they are alike.

    Attributes:
        model: The `SentenceTransformer`.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device = model.device
        self.dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        self.prompts: dict[str, str] = {side: prompt for side, prompt in model.prompts.items() if prompt}
        self.max_tokens: int | None = model.max_seq_length
        self.weights = sum(int(weight.numel()) for weight in model.parameters())
        self.backend = getattr(getattr(model, "tokenizer", None), "backend_tokenizer", None)

    def encode(self, side: str, texts: Sequence[str], *, prompt: str, batch_size: int | None, normalize: bool) -> Any:
        """(texts, dim)"""
        encode = {"query": self.model.encode_query, "document": self.model.encode_document}[side]
        batch_size = batch_size or BATCH_SIZE.get(self.device.type, BATCH_SIZE["cpu"])
        options = {"batch_size": batch_size, "normalize_embeddings": normalize, "show_progress_bar": False}
        return encode(list(texts), prompt=prompt, **options)

    def tokenizer(self, side: str, prompt: str, _: int | None) -> Tokenize:
        """A function from texts to their tokens, by the library."""

        def tokenize(texts: list[str]) -> list[Tokens]:
            features = self.model.preprocess(texts, prompt=prompt or None, task=side)
            rows = zip(features["input_ids"].numpy(), features["attention_mask"].numpy().astype(bool), strict=True)
            return [ids[mask].astype(np.int32) for ids, mask in rows]

        return tokenize


def load_library_model(folder: Path, *, device: str | None, dtype: str) -> LibraryModel:
    """The model of a folder; `dtype` "auto" is float32 on a CPU, elsewhere as the library loads it.

    No code of the folder is run: its modules are the library's own, and weights are safetensors.
    """
    _check_weights(folder)
    library = import_extra("sentence_transformers", extra="models")
    torch = import_extra("torch", extra="models")
    if dtype == "auto" and (device == "cpu" or (device is None and not torch.cuda.is_available())):
        dtype = "float32"
    settings: dict[str, Any] = {"use_safetensors": True}
    if dtype != "auto":
        settings["dtype"] = getattr(torch, dtype)
    with loading(folder, "sentence-transformers"), no_progress_bars():
        model = library.SentenceTransformer(
            str(folder), device=device, trust_remote_code=False, local_files_only=True, model_kwargs=settings
        )
    if dtype == "auto" and model.device.type == "cpu":
        dtype = "float32"
    if dtype != "auto":
        model = model.to(getattr(torch, dtype))
    return LibraryModel(model.eval())


def _check_weights(folder: Path) -> None:
    """Raise `InputError` for weights that the library would unpickle."""
    for name in PICKLED:
        for path in folder.rglob(f"{name}*"):
            safe = f"{name.replace('pytorch_model', 'model').removesuffix('.bin')}.safetensors"
            if not any((path.parent / one).is_file() for one in (safe, f"{safe}.index.json")):
                raise InputError(
                    f"{path}: pickled weights could run code and are never read. Convert them to safetensors where you "
                    "trust them: open the model with sentence-transformers and save it with save_pretrained."
                )


def save_model(model: Any, folder: Path) -> None:
    """Write a `SentenceTransformer` to a folder, atomically; it replaces one that is there."""
    write_error = import_extra("safetensors", extra="models").SafetensorError
    fresh = temporary_path(folder)
    try:
        with no_progress_bars():
            model.save_pretrained(str(fresh), create_model_card=False)
        for path in fresh.rglob("*"):
            sync(path)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    except (OSError, write_error) as error:
        raise InputError(f"{folder}: the model could not be written ({error}).") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    sync(folder.parent)
