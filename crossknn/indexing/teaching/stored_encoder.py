"""The taught encoder of an index: files in the index folder, and a sentence-transformers folder made of them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

from crossknn.encoders.sentence import SentenceEncoder
from crossknn.errors import InputError
from crossknn.storage.atomic_dir import Write

WEIGHTS, FILES = "encoder.safetensors", "encoder.json"  # in the index folder
MODEL_WEIGHTS: Final = "model.safetensors"  # in a model's folder
SAFE_NAME: Final = re.compile(r"^(?:[A-Za-z0-9_]+/)?[A-Za-z0-9_]+\.(?:json|txt|model)$")


@dataclass(frozen=True)
class StoredEncoder:
    """A sentence-transformers model with one file of weights and some small text files.

    Attributes:
        weights: The file of weights.
        texts: The other files of the model's folder by name, such as `1_Pooling/config.json`.
        normalize: Whether vectors have length 1.
        base: Fingerprint of the encoder that was taught.
    """

    weights: Path
    texts: Mapping[str, str]
    normalize: bool
    base: str
    _owner: TemporaryDirectory[str] | None = field(default=None, repr=False)  # of the weights' folder

    @classmethod
    def of(cls, encoder: SentenceEncoder, *, base: str, owner: TemporaryDirectory[str] | None = None) -> Self:
        """The files of an encoder's folder, which is deleted with its `owner`."""
        folder, texts = encoder.folder, {}
        for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MODEL_WEIGHTS):
            name = path.relative_to(folder).as_posix()
            if not SAFE_NAME.match(name):
                raise InputError(f"{path}: a file that an index cannot hold. Teach an encoder without it.")
            texts[name] = path.read_text(encoding="utf-8")
        return cls(folder / MODEL_WEIGHTS, texts, encoder.normalize, base, owner)

    @classmethod
    def load(cls, files: Mapping[str, Path], facts: Mapping[str, Any]) -> Self:
        """The encoder in an index folder."""
        texts = json.loads(files[FILES].read_text(encoding="utf-8"))
        for name, text in texts.items():
            if not SAFE_NAME.match(name) or not isinstance(text, str):
                raise InputError(f"{files[FILES]}: damaged: it lists {name!r}, which is not a file of an encoder.")
        return cls(files[WEIGHTS], texts, bool(facts["normalize"]), str(facts["base"]))

    @property
    def facts(self) -> dict[str, Any]:
        """What `load` needs besides the files."""
        return {"normalize": self.normalize, "base": self.base}

    def files(self) -> dict[str, Write]:
        """The files to write to an index folder."""
        content = json.dumps(self.texts, ensure_ascii=False)
        return {
            WEIGHTS: lambda path: _copy(self.weights, path),
            FILES: lambda path: _write(path, content),
        }

    def open(self, *, device: str | None = None) -> SentenceEncoder:
        """The encoder, from a temporary folder that lives as long as it."""
        owner = TemporaryDirectory(prefix="crossknn-encoder-")
        folder = Path(owner.name)
        for name, text in self.texts.items():
            (folder / name).parent.mkdir(exist_ok=True)
            _write(folder / name, text)
        for entry in json.loads(self.texts.get("modules.json", "[]")):
            (folder / Path(str(entry["path"])).name).mkdir(exist_ok=True)  # of modules without settings
        try:
            (folder / MODEL_WEIGHTS).symlink_to(self.weights.resolve())
        except OSError:  # a system without links
            _copy(self.weights, folder / MODEL_WEIGHTS)
        return OwnedEncoder(folder, owner, device=device, normalize=self.normalize)


class OwnedEncoder(SentenceEncoder):
    """A sentence encoder whose folder is deleted with it."""

    def __init__(self, folder: Path, owner: TemporaryDirectory[str], **settings: Any) -> None:
        super().__init__(folder, **settings)
        self._owner = owner


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
