"""Dual encoders of sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import numpy as np

from crossknn._checks import check_choice, check_positive, invalid
from crossknn._imports import import_extra
from crossknn.encoders.base import check_vectors
from crossknn.encoders.library_model import LibraryModel, load_library_model
from crossknn.encoders.padding_free import PaddingFreeEncoder
from crossknn.encoders.text_tokens import text_tokenizer
from crossknn.models.batching import without_cudnn_attention
from crossknn.models.hub import EMBEDDED, find_model, loading, portable_name
from crossknn.models.specs import ModelSpec
from crossknn.scorers.inference.token_store import Tokenize, Tokens
from crossknn.types import Vectors

DTYPES = ("auto", "float32", "float16", "bfloat16")
AT_ONCE = {"cpu": 256, "cuda": 8192}
# Files that determine the vectors, unlike README, training notes and copies in other formats.
CONFIG_FILES = ("modules.json", "config.json", "config_sentence_transformers.json", "sentence_bert_config.json")
TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json")
SLOW_TOKENIZER_FILES = ("vocab.txt", "vocab.json", "merges.txt", "*.model")  # where there is no tokenizer.json


class SentenceEncoder:
    """A sentence-transformers model, such as sentence-transformers/all-MiniLM-L6-v2. Remote code is never run.

    A transformer with a pooling runs padding-free, without importing sentence-transformers; the library itself runs all
    other models.

    Args:
        name_or_folder: A folder, a name on the model hub, or "embedded", the all-MiniLM-L6-v2 of crossknn[example] (a
            folder of that name is "./embedded").
        device: A torch device. Default: a GPU if there is one.
        dtype: "float32", "float16", "bfloat16" or "auto": float32 on a CPU, elsewhere as the library loads the model.
            Vectors are float32 always.
        batch_size: Texts per batch. Default: by device and lengths.
        normalize: Whether vectors have length 1, so that inner products are cosines.
        query_prompt: Put before queries. Default: the model's own prompt, if any.
        item_prompt: Likewise, for items.
        max_tokens: Truncate texts to fewer tokens than the model would.

    Attributes:
        device: The torch device that it runs on.
        weights: The number of the model's weights.
        at_once: The number of texts that it is best called with,
        threads: and by how many threads.
        folder_owner: Of a temporary folder, which lives as long as the encoder.
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
        import_extra("torch", extra="models")  # says what to install, whatever the folder is
        self.name = str(name_or_folder)
        self.folder = find_model(_full_name(name_or_folder), kind="SentenceTransformer")
        self.normalize = normalize
        self._prompts = {"query": query_prompt, "document": item_prompt}
        self._settings: dict[str, Any] = {"device": device, "batch_size": batch_size, "normalize": normalize}
        self._settings |= {"query_prompt": query_prompt, "item_prompt": item_prompt}
        with loading(self.folder, "sentence-transformers"):
            self._padding_free = PaddingFreeEncoder.open(self.folder, device=device, dtype=dtype)
            self._library = None if self._padding_free else load_library_model(self.folder, device=device, dtype=dtype)
            opened: Any = self._padding_free or self._library
            self.device, self.dtype, self.weights = opened.device, opened.dtype, opened.weights
            self._own_prompts: dict[str, str] = opened.prompts
            self.max_tokens = _limit_tokens(opened.max_tokens, max_tokens)
            self._set_limit(self._library)
            self._tokenizers: dict[str, Tokenize] = {}
            self.at_once = AT_ONCE.get(self.device.type, AT_ONCE["cpu"])
            self.threads = 2 if self._padding_free and self.device.type == "cuda" else 1
            self.dim = int(check_vectors(self._encode("query", ["dimension"]), ["dimension"]).shape[1])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as the model's name and settings; another process loads the model itself."""
        name = portable_name(self.name, self.folder)
        return partial(type(self), name, dtype=self.dtype, max_tokens=self.max_tokens, **self._settings), ()

    @property
    def spec(self) -> ModelSpec | None:
        """How to open the model again, as an index remembers it; None for one in a temporary folder."""
        if self.folder_owner is not None:
            return None
        settings = {name: self._settings[name] for name in ("normalize", "query_prompt", "item_prompt")}
        settings |= {"dtype": self.dtype, "max_tokens": self.max_tokens}
        return ModelSpec.of(self, portable_name(self.name, self.folder), settings)

    @property
    def model(self) -> Any:
        """The `SentenceTransformer`, loaded when it is first asked for."""
        if self._library is None:
            self._library = load_library_model(self.folder, device=str(self.device), dtype=self.dtype)
            self._set_limit(self._library)
        return self._library.model

    def load_model(self, *, device: str | None) -> Any:
        """A `SentenceTransformer` in float32 that the caller may change, with the same limit of tokens."""
        library = load_library_model(self.folder, device=device or "cpu", dtype="float32")
        self._set_limit(library)
        return library.model

    def prompt(self, side: str) -> str:
        """What is put before the texts of a side, "query" or "document"."""
        given = self._prompts[side]
        return self._own_prompts.get(side, "") if given is None else given

    @cached_property
    def fingerprint(self) -> str:
        settings = {
            "normalize": self.normalize,
            "prompts": self._prompts,
            "max_tokens": self.max_tokens,
            "dtype": f"torch.{self.dtype}",
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
        with without_cudnn_attention(self.device):
            vectors = self._encode(side, list(texts))
        return check_vectors(vectors, texts, dim=self.dim)

    def tokenize(self, side: str, texts: Sequence[str]) -> list[Tokens]:
        """The tokens of texts of a side, with prompt and special tokens, truncated."""
        if side not in self._tokenizers:
            self._tokenizers[side] = self._make_tokenizer(side)
        return self._tokenizers[side](list(texts))

    def _make_tokenizer(self, side: str) -> Tokenize:
        prompt = self.prompt(side)
        opened: Any = self._padding_free or self._library
        reference: Tokenize = opened.tokenizer(side, prompt, self.max_tokens)
        if opened.backend is None or not self.max_tokens:
            return reference
        return text_tokenizer(opened.backend, prompt=prompt, max_tokens=self.max_tokens, reference=reference)

    def _encode(self, side: str, texts: list[str]) -> Any:
        options = {"batch_size": self._settings["batch_size"], "normalize": self.normalize}
        if self._padding_free is not None:
            return self._padding_free.encode(self.tokenize(side, texts), **options)
        assert self._library is not None
        return self._library.encode(side, texts, prompt=self.prompt(side), **options)

    def _set_limit(self, library: LibraryModel | None) -> None:
        """Let the library truncate texts as this encoder does."""
        if library is not None and self.max_tokens != library.max_tokens:
            library.model.max_seq_length = self.max_tokens


def _full_name(name: str | Path) -> str | Path:
    """A bare hub name, such as all-MiniLM-L6-v2, belongs to sentence-transformers."""
    if not isinstance(name, str) or name == EMBEDDED or "/" in name or name.startswith((".", "~")):
        return name
    return name if Path(name).exists() else f"sentence-transformers/{name}"


def _limit_tokens(own: int | None, max_tokens: int | None) -> int | None:
    """The limit in effect: the user's, or the model's own."""
    if max_tokens is not None and own is not None and max_tokens > own:
        raise invalid("max_tokens", f"at most the model's own limit ({own})", max_tokens)
    return own if max_tokens is None else max_tokens


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
    return [file for pattern in [*patterns, "*.safetensors"] for file in sorted(module.glob(pattern))]
