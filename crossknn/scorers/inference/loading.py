"""Loading a model and its tokenizer: no remote code, no pickle."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from crossknn._imports import import_extra
from crossknn.errors import InputError, ModelNotFound
from crossknn.models.hub import find_model, no_progress_bars

DTYPES = ("float32", "bfloat16", "float16", "int8")
# What a config may say without changing a score.
SILENT_CONFIG = (
    "_name_or_path",
    "architectures",
    "dtype",
    "id2label",
    "label2id",
    "torch_dtype",
    "transformers_version",
)


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A model ready to run, its tokenizer, and a private copy of the tokenizer's fast core."""

    model: Any
    tokenizer: Any
    backend: Any  # never cuts, never pads, shared with nobody
    device: Any
    wanted_device: Any  # what the user gave; None: whatever there is
    dtype: str
    folder: Path
    source: str  # what the user gave: a folder, a hub name or "embedded"


def load_pretrained(name: str | os.PathLike[str], *, kind: str, device: Any, dtype: str) -> Pretrained:
    """Load `kind` (an Auto class of transformers) in evaluation mode on the device."""
    torch = import_extra("torch", extra="models")
    transformers = import_extra("transformers", extra="models")
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = choose_dtype(dtype, place.type)
    source, folder = os.fspath(name), find_model(name, kind=kind)
    options: dict[str, Any] = {_dtype_option(transformers): getattr(torch, "float32" if dtype == "int8" else dtype)}
    model, tokenizer, loading = _load(transformers, str(folder), kind, options)
    _refuse_untrained(loading, source, kind)
    backend_class = import_extra("tokenizers", extra="models").Tokenizer
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(f"the tokenizer of {source} must be a fast one (with a tokenizer.json).")
    backend = backend_class.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    model = model.eval().requires_grad_(False).to(place)
    return Pretrained(model, tokenizer, backend, place, device, dtype, folder, source)


def choose_dtype(dtype: str, device_type: str) -> str:
    """`auto` is float32 on a CPU and bfloat16 on a GPU."""
    if dtype == "auto":
        return "bfloat16" if device_type == "cuda" else "float32"
    if dtype not in DTYPES:
        raise InputError(f"dtype must be 'auto' or one of {', '.join(DTYPES)}. Got {dtype!r} instead.")
    if dtype == "int8" and device_type != "cpu":
        raise InputError(f"dtype='int8' runs on a CPU only. Got the device {device_type!r}: use 'bfloat16' there.")
    return dtype


def _dtype_option(transformers: Any) -> str:
    major, minor = (int(part) for part in transformers.__version__.split(".")[:2])
    return "dtype" if (major, minor) >= (4, 56) else "torch_dtype"


def _load(transformers: Any, folder: str, kind: str, options: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Model, tokenizer and what loading said; only safetensors and never code from the model's folder."""
    safe: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    broken_weights = import_extra("safetensors", extra="models").SafetensorError
    try:
        with no_progress_bars():
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, use_fast=True, **safe)
            model, loading = getattr(transformers, kind).from_pretrained(
                folder, use_safetensors=True, output_loading_info=True, **safe, **options
            )
    except (OSError, ValueError, KeyError, broken_weights) as error:
        raise ModelNotFound(
            f"{folder}: transformers could not load a model (safetensors) from it ({error})."
        ) from error
    return model, tokenizer, loading


def _refuse_untrained(loading: dict[str, Any], source: str, kind: str) -> None:
    """Refuse what transformers fills missing weights with random numbers, with no more than a warning."""
    missing = sorted(key for key in loading.get("missing_keys", ()) if not _unused(key, kind))
    if missing:
        raise InputError(
            f"{source} does not hold every weight of a {kind.removeprefix('AutoModelFor')} model: {missing[0]} and "
            f"{len(missing) - 1} more are missing, so its scores would be random. Give a trained cross-encoder."
        )


def _unused(key: str, kind: str) -> bool:
    return kind == "AutoModel" and "pooler" in key


def longest_input(model: Any, tokenizer: Any) -> tuple[int, int | None]:
    """(default length, hard limit): the limit is None where positions are relative."""
    limit = None
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and hasattr(module, "num_embeddings"):
            # With a padding position (RoBERTa) the first text position comes after it.
            limit = module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    known = [limit, tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None)]
    return min([int(length) for length in known if length and 0 < length < 1_000_000] or [512]), limit


def hash_weights(model: Any) -> bytes:
    """A digest of every tensor of the model, names and shapes included."""
    torch = import_extra("torch", extra="models")
    digest = blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.digest()


def config_that_counts(model: Any) -> dict[str, Any]:
    """The config's settings that differ from the defaults and can change a score."""
    config: dict[str, Any] = model.config.to_diff_dict()
    return {key: value for key, value in config.items() if key not in SILENT_CONFIG and key != "sentence_transformers"}
