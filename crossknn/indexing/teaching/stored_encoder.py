"""The taught encoder of an index: files in the index folder, and a sentence-transformers folder made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self, TypedDict

import numpy as np
from numpy.typing import NDArray

from crossknn.encoders.adapter import TaughtFacts
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.errors import InputError
from crossknn.storage.atomic import digest, disk_errors
from crossknn.storage.atomic_dir import RESTORE, Write
from crossknn.storage.json_values import parse_json, read_as
from crossknn.storage.regular_files import map_bytes

FILES: Final = "encoder.json"  # in the index folder: the model's other files, and the names of its weights
WEIGHTS: Final = ("encoder.safetensors", *(f"encoder_{letter}.safetensors" for letter in "abcdefgh"))
SAFE_NAME: Final = re.compile(r"(?:[A-Za-z0-9_]+/)?[A-Za-z0-9_]+(?:\.bpe)?\.(?:json|txt|model|safetensors)")
SUFFIX: Final = ".safetensors"
MAX_BYTES: Final = 1 << 28  # of the model's other files
BYTES: Final = "latin-1"  # stands for bytes that are no UTF-8


_Binary = TypedDict("_Binary", {"latin-1": str})


class _Listed(TypedDict):
    """The content of `encoder.json`."""

    weights: dict[str, str]  # names of files in the index folder
    contents: dict[str, Any]


@dataclass(frozen=True)
class StoredEncoder:
    """A sentence-transformers model as files of weights, one or a few, and small files.

    Attributes:
        weights: The bytes of the files of weights by name in the model's folder, such as `model.safetensors`. They are
            memory-mapped, and stay readable when their files are deleted.
        contents: The other files by name, such as `1_Pooling/config.json`.
        normalize: Whether vectors have length 1.
        base: Fingerprint of the encoder that was taught.
        digests: Of the weights by name, where they are mapped from files that are not those of an index.
    """

    weights: Mapping[str, NDArray[np.uint8]]
    contents: Mapping[str, bytes]
    normalize: bool
    base: str
    digests: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, encoder: SentenceEncoder, *, base: str) -> Self:
        """The files of an encoder's folder."""
        folder, weights, contents = encoder.folder, dict[str, NDArray[np.uint8]](), dict[str, bytes]()
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            name = path.relative_to(folder).as_posix()
            if not SAFE_NAME.fullmatch(name):
                raise InputError(f"{path}: a file that an index cannot hold. Teach an encoder without it.")
            if path.suffix == SUFFIX:
                weights[name] = np.memmap(path, np.uint8, mode="r")
            else:
                contents[name] = path.read_bytes()
        if len(weights) > len(WEIGHTS):
            raise InputError(f"{folder}: an index holds an encoder of at most {len(WEIGHTS)} files of weights.")
        digests = {name: digest(array.data) for name, array in weights.items()}
        return cls(weights, contents, encoder.normalize, base, digests)

    @classmethod
    def load(cls, files: Mapping[str, Path], facts: Mapping[str, Any]) -> Self:
        """The encoder in an index folder."""
        path = files[FILES]
        try:
            content = map_bytes(path)
            if len(content) > MAX_BYTES:
                raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
            listed = read_as(_Listed, parse_json(content.tobytes()))
            if len(set(listed["weights"].values())) < len(listed["weights"]):
                raise ValueError("a file of weights has two names")
            if not files.keys() >= set(listed["weights"].values()):
                raise ValueError("the index has not all of its weights")
            stored = {name: files[stored] for name, stored in listed["weights"].items()}
            contents = {name: _from_json(content) for name, content in listed["contents"].items()}
        except ValueError as error:
            raise InputError(f"{path}: damaged ({error}). {RESTORE}") from error
        for names, are_weights in ((stored, True), (contents, False)):
            for name in names:
                if not SAFE_NAME.fullmatch(name) or name.endswith(SUFFIX) != are_weights:
                    raise InputError(
                        f"{path}: damaged: it lists {name!r}, which is not a file of an encoder. {RESTORE}"
                    )
        facts = read_as(TaughtFacts, facts, "taught")
        weights = {name: map_bytes(path) for name, path in stored.items()}
        return cls(weights, contents, facts["normalize"], facts["base"])

    @property
    def facts(self) -> dict[str, Any]:
        """What `load` needs besides the files."""
        return {"normalize": self.normalize, "base": self.base}

    def files(self) -> dict[str, Write]:
        """The files to write to an index folder."""
        stored = dict(zip(self.weights, WEIGHTS, strict=False))
        contents = {name: _to_json(content) for name, content in self.contents.items()}
        listed = json.dumps({"weights": stored, "contents": contents}).encode()
        copies: dict[str, Write] = {stored[name]: partial(self._copy_weights, name) for name in self.weights}
        return {**copies, FILES: lambda path: _write(path, listed)}

    def _copy_weights(self, name: str, path: Path) -> None:
        array = self.weights[name]
        _write(path, array.data)
        if name in self.digests and digest(array.data) != self.digests[name]:
            raise InputError(f"{name} of the taught encoder was damaged after it was written. Run the build again.")

    def open(self, *, device: str | None = None) -> SentenceEncoder:
        """The encoder, from a temporary folder that lives as long as it."""
        owner = TemporaryDirectory(prefix="crossknn-encoder-")
        folder = Path(owner.name)
        with disk_errors(folder, "the encoder of the index cannot be unpacked", "TMPDIR names another folder."):
            for name, content in self.contents.items():
                _write(folder / name, content)
            for name, array in self.weights.items():
                _write(folder / name, array.data)
        encoder = SentenceEncoder(folder, device=device, normalize=self.normalize)
        encoder.folder_owner = owner
        return encoder


def _to_json(content: bytes) -> str | dict[str, str]:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {BYTES: content.decode(BYTES)}


def _from_json(content: Any) -> bytes:
    return content.encode() if isinstance(content, str) else read_as(_Binary, content)[BYTES].encode(BYTES)


def _write(path: Path, content: bytes | memoryview) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
