"""Dual encoders of sentence-transformers, with a fast path for its `encode`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from hashlib import file_digest, sha256
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from crossknn._checks import check_choice, check_positive, invalid
from crossknn._imports import import_extra
from crossknn.encoders.base import check_vectors
from crossknn.errors import InputError, ModelNotFound
from crossknn.models.batching import length_buckets, without_cudnn_attention
from crossknn.models.hub import EMBEDDED, find_model, no_progress_bars, portable_name
from crossknn.storage.atomic import sync, temporary_path
from crossknn.types import Vectors

if TYPE_CHECKING:
    import torch

DTYPES = ("auto", "float32", "float16", "bfloat16")
BATCH_SIZE = {"cpu": 32, "cuda": 256}
BATCH_TOKENS = {"cuda": 65_536}  # per batch, where more short texts fit
AT_ONCE = {"cpu": 256, "cuda": 8192}
# Files that determine the vectors, unlike README, training notes and copies in other formats.
CONFIG_FILES = ("modules.json", "config.json", "config_sentence_transformers.json", "sentence_bert_config.json")
TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json")
SLOW_TOKENIZER_FILES = ("vocab.txt", "vocab.json", "merges.txt", "*.model")  # where there is no tokenizer.json
TENSORS: Final = {"input_ids", "attention_mask", "token_type_ids"}
SAMPLES: Final = ("Ice", "", "  Two\tspaces  and\na LINE ", "naïve café ﬁ 水 Σ", "[SEP] <s> </s> [PAD]", "word " * 9000)


class SentenceEncoder:
    """A sentence-transformers model, such as sentence-transformers/all-MiniLM-L6-v2. Remote code is never run.

    Args:
        name_or_folder: A folder, a name on the model hub, or "embedded", the all-MiniLM-L6-v2 of crossknn[example] (a
            folder of that name is "./embedded").
        device: A torch device. Default: chosen by sentence-transformers.
        dtype: "float32", "float16", "bfloat16" or "auto": float32 on a CPU, elsewhere as the library loads the model.
            Vectors are float32 always.
        batch_size: Texts per batch. Default: by device.
        normalize: Whether vectors have length 1, so that inner products are cosines.
        query_prompt: Put before queries. Default: the model's own prompt, if any.
        item_prompt: Likewise, for items.
        max_tokens: Truncate texts to fewer tokens than the model would.

    Attributes:
        at_once: The number of texts that it is best called with,
        threads: and by how many threads.
        folder_owner: Of a temporary folder, which lives as long as the encoder and its copies.
    """

    folder_owner: Any = None

    def __init__(
        self,
        name_or_folder: str | Path,
        *,
        device: str | None = None,
        dtype: str = "auto",
        batch_size: int | None = None,
        normalize: bool = True,
        query_prompt: str | None = None,
        item_prompt: str | None = None,
        max_tokens: int | None = None,
    ) -> None:
        check_choice("dtype", dtype, DTYPES)
        for setting, value in (("batch_size", batch_size), ("max_tokens", max_tokens)):
            if value is not None:
                check_positive(setting, value)
        library = import_extra("sentence_transformers", extra="models")
        self.name = str(name_or_folder)
        self.folder = find_model(_full_name(name_or_folder), kind="SentenceTransformer")
        self.normalize = normalize
        self._prompts = {"query": query_prompt, "document": item_prompt}
        self._settings: dict[str, Any] = {"device": device, "batch_size": batch_size, "normalize": normalize}
        self._settings |= {"query_prompt": query_prompt, "item_prompt": item_prompt}
        self._model = _load(library, self.folder, device, dtype)
        self.max_tokens = _limit_tokens(self._model, max_tokens)
        self.batch_size = batch_size or BATCH_SIZE.get(self._model.device.type, BATCH_SIZE["cpu"])
        self._batch_tokens = 0 if batch_size else BATCH_TOKENS.get(self._model.device.type, 0)
        self.at_once = AT_ONCE.get(self._model.device.type, AT_ONCE["cpu"])
        self._fast = None if query_prompt or item_prompt else FastEncoding.for_model(self._model)
        self.threads = 2 if self._fast is not None and self._model.device.type == "cuda" else 1
        self.dim = int(check_vectors(self._encode("query", ["dimension"]), ["dimension"]).shape[1])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as the model's name and settings; another process loads the model itself."""
        name = portable_name(self.name, self.folder)
        return partial(type(self), name, dtype=self._dtype, max_tokens=self.max_tokens, **self._settings), ()

    @property
    def model(self) -> Any:
        """The `SentenceTransformer`."""
        return self._model

    def copy(self, *, device: str | None, dtype: str) -> Self:
        """The same model, loaded again, elsewhere or in another precision."""
        settings = {**self._settings, "device": device or "cpu", "dtype": dtype, "max_tokens": self.max_tokens}
        made = type(self)(self.folder, **settings)
        made.folder_owner = self.folder_owner
        return made

    def prompt(self, side: str) -> str | None:
        """What is put before the texts of a side, "query" or "document"."""
        own: str | None = self._model.prompts.get(side, self._model.prompts.get(self._model.default_prompt_name))
        return own if self._prompts[side] is None else self._prompts[side]

    @property
    def _dtype(self) -> str:
        return str(next(self._model.parameters()).dtype).removeprefix("torch.")

    @cached_property
    def fingerprint(self) -> str:
        settings = {
            "normalize": self.normalize,
            "prompts": self._prompts,
            "max_tokens": self.max_tokens,
            "dtype": f"torch.{self._dtype}",
        }
        digest = sha256(json.dumps(settings, sort_keys=True).encode())
        for name, content in _hash_files(self.folder):
            digest.update(f"{name}={content}\n".encode())
        return f"sentence:{digest.hexdigest()[:32]}"

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        return self._checked("query", texts)

    def encode_items(self, texts: Sequence[str]) -> Vectors:
        return self._checked("document", texts)

    def _checked(self, side: str, texts: Sequence[str]) -> Vectors:
        if isinstance(texts, str):
            raise invalid("texts", "a list of strings", texts)
        if not len(texts):
            return np.empty((0, self.dim), np.float32)
        with without_cudnn_attention(self._model.device):
            vectors = self._encode(side, list(texts))
        return check_vectors(vectors, texts, dim=self.dim)

    def _encode(self, side: str, texts: list[str]) -> Any:
        if self._fast is not None:
            sizes = {"batch_size": self.batch_size, "batch_tokens": self._batch_tokens}
            return self._fast.encode(texts, **sizes, normalize=self.normalize)
        encode = {"query": self._model.encode_query, "document": self._model.encode_document}[side]
        options = {"batch_size": self.batch_size, "normalize_embeddings": self.normalize, "show_progress_bar": False}
        return encode(texts, prompt=self._prompts[side], **options)


class FastEncoding:
    """One tokenizer call for all texts and one transfer of all vectors; created by `for_model`.

    The library's own `encode` makes Python lists of all token ids and synchronizes with the device after each batch,
    which on a fast device takes longer than the model does.
    """

    def __init__(self, model: Any, backend: Any, features: dict[str, Any]) -> None:
        self._torch = import_extra("torch", extra="models")
        self._model = model
        self._backend = backend
        self._pad_id = model.tokenizer.pad_token_id or 0
        self._type_ids = "token_type_ids" in features
        self._constants = {name: value for name, value in features.items() if name not in TENSORS}  # for all texts

    @classmethod
    def for_model(cls, model: Any) -> Self | None:
        """None where the model is unusual in any way, and the library's own `encode` must be used."""
        if any(model.prompts.values()) or model.truncate_dim is not None:
            return None
        backend = getattr(getattr(model, "tokenizer", None), "backend_tokenizer", None)
        if type(model[0]).__name__ != "Transformer" or backend is None or not model.max_seq_length:
            return None
        expected = dict(model.preprocess(list(SAMPLES)))
        backend = type(backend).from_str(backend.to_str())  # a copy: the library changes its settings at every call
        backend.no_padding()
        backend.enable_truncation(model.max_seq_length)
        fast = cls(model, backend, expected)
        return fast if fast._agrees(expected) else None

    def encode(self, texts: Sequence[str], *, batch_size: int, batch_tokens: int, normalize: bool) -> Vectors:
        """(texts, dim), in batches of at least `batch_size` texts, and more while they have at most `batch_tokens`."""
        tokens = self._tokenize(texts)
        batches = list(length_buckets(np.array([len(ids) for ids in tokens]), batch_tokens, min_rows=batch_size))
        torch, parts = self._torch, []
        with torch.inference_mode():
            for batch in batches:
                features = self._pad([tokens[place] for place in batch])
                part = self._model(self._to_device(features))["sentence_embedding"]
                parts.append(torch.nn.functional.normalize(part, p=2, dim=1) if normalize else part)
            in_order: Vectors = torch.cat(parts).float().cpu().numpy()
        vectors = np.empty_like(in_order)
        vectors[np.concatenate(batches)] = in_order
        return vectors

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._backend.encode_batch_fast(list(texts))]

    def _pad(self, tokens: list[list[int]]) -> dict[str, torch.Tensor]:
        lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
        mask = np.arange(lengths.max()) < lengths[:, None]
        ids = np.full(mask.shape, self._pad_id, np.int64)
        ids[mask] = np.fromiter(chain.from_iterable(tokens), np.int64, int(lengths.sum()))
        arrays = {"input_ids": ids, "attention_mask": mask.astype(np.int64)}
        if self._type_ids:
            arrays["token_type_ids"] = np.zeros_like(ids)
        return {name: self._torch.from_numpy(array) for name, array in arrays.items()}

    def _to_device(self, features: dict[str, torch.Tensor]) -> dict[str, Any]:
        device = self._model.device
        if device.type == "cuda":  # for copies that overlap with computation
            features = {name: tensor.pin_memory() for name, tensor in features.items()}
        return {name: tensor.to(device, non_blocking=True) for name, tensor in features.items()} | self._constants

    def _agrees(self, expected: dict[str, Any]) -> bool:
        """Whether the features of the samples equal the library's."""
        features = self._pad(self._tokenize(SAMPLES))
        return all(
            self._torch.is_tensor(expected.get(name)) and self._torch.equal(expected[name], tensor)
            for name, tensor in features.items()
        ) and not any(map(self._torch.is_tensor, self._constants.values()))


def _full_name(name: str | Path) -> str | Path:
    """A bare hub name, such as all-MiniLM-L6-v2, belongs to sentence-transformers."""
    if not isinstance(name, str) or name == EMBEDDED or "/" in name or name.startswith((".", "~")):
        return name
    return name if Path(name).exists() else f"sentence-transformers/{name}"


def _load(library: Any, folder: Path, device: str | None, dtype: str) -> Any:
    broken_weights = import_extra("safetensors", extra="models").SafetensorError
    torch = import_extra("torch", extra="models")
    if dtype == "auto" and (device == "cpu" or (device is None and not torch.cuda.is_available())):
        dtype = "float32"
    precision = {} if dtype == "auto" else {"model_kwargs": {"dtype": getattr(torch, dtype)}}
    try:
        with no_progress_bars():
            model = library.SentenceTransformer(
                str(folder), device=device, trust_remote_code=False, local_files_only=True, **precision
            )
    except (OSError, ValueError, KeyError, broken_weights) as error:
        raise ModelNotFound(f"{folder}: sentence-transformers could not load the model ({error}).") from error
    if dtype == "auto" and model.device.type == "cpu":
        dtype = "float32"
    if dtype != "auto":
        model = model.to(getattr(torch, dtype))
    return model.eval()


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


def _limit_tokens(model: Any, max_tokens: int | None) -> int | None:
    """Truncate texts to `max_tokens`, and return the limit in effect."""
    own: int | None = model.max_seq_length
    if max_tokens is None:
        return own
    if own is not None and max_tokens > own:
        raise invalid("max_tokens", f"at most the model's own limit ({own})", max_tokens)
    model.max_seq_length = max_tokens
    return max_tokens


def _hash_files(folder: Path) -> Iterable[tuple[str, str]]:
    """Name and hash of every file that determines the vectors, in a fixed order."""
    modules = [folder]
    if (folder / "modules.json").is_file():
        entries = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        modules = [folder, *(folder / entry["path"] for entry in entries if entry["path"])]
    for module in modules:
        for file in _model_files(module):
            with file.open("rb") as content:
                yield file.relative_to(folder).as_posix(), file_digest(content, "sha256").hexdigest()


def _model_files(module: Path) -> list[Path]:
    patterns = [*CONFIG_FILES, *TOKENIZER_FILES]
    if not (module / "tokenizer.json").is_file():
        patterns += SLOW_TOKENIZER_FILES
    patterns.append("*.safetensors" if any(module.glob("*.safetensors")) else "*.bin")
    return [file for pattern in patterns for file in sorted(module.glob(pattern))]
