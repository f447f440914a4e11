"""Loading a model and its tokenizer, without remote code or pickle; the precisions a device supports."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from crossknn._checks import check_choice, invalid
from crossknn._imports import import_extra
from crossknn.errors import InputError
from crossknn.models.hub import find_model, loading, no_progress_bars
from crossknn.scorers.inference.model_folder import SERVER_HINT

DTYPES = ("auto", "float32", "bfloat16", "float16", "int8")
CONFIG_WITHOUT_EFFECT = (  # on scores
    "_name_or_path",
    "architectures",
    "dtype",
    "id2label",
    "label2id",
    "sentence_transformers",
    "torch_dtype",
    "transformers_version",
)
HALF_PRECISION_PROBE = "import torch; x = torch.ones(64, 64, dtype=torch.{dtype}); torch.nn.functional.linear(x, x)"


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A model ready to run, and its tokenizer."""

    model: Any
    tokenizer: Any
    backend: Any  # a private copy of the fast tokenizer, without truncation or padding
    device: Any
    dtype: str
    folder: Path
    source: str  # as the user gave it: a folder, a hub name or "embedded"

    def max_input_length(self) -> tuple[int, int | None]:
        """(default length, hard limit); the limit is None where positions are relative."""
        limit = None
        for name, module in self.model.named_modules():
            if name.endswith("position_embeddings") and hasattr(module, "num_embeddings"):
                # With a padding position (RoBERTa) the first text position follows it.
                limit = module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
        known = [limit, self.tokenizer.model_max_length, getattr(self.model.config, "max_position_embeddings", None)]
        return min([int(length) for length in known if length and 0 < length < 1_000_000] or [512]), limit

    @property
    def runs(self) -> bool:
        """Whether this machine can run the model; one that cannot may still open it, for its fingerprint."""
        if self.device.type != "cpu" or self.dtype not in ("bfloat16", "float16"):
            return True
        try:
            check_half_precision(self.dtype)
        except InputError:
            return False
        return True

    @property
    def pad(self) -> int:
        """A token to pad with: the tokenizer's or the model's; any other would do, because it is masked."""
        known = (self.tokenizer.pad_token_id, self.model.config.pad_token_id, self.tokenizer.eos_token_id, 0)
        return int(next(token for token in known if token is not None))

    def choose_max_length(self, max_length: int | None, *, specials: int, default: int | None = None) -> int:
        """The length given, if it suits the model and leaves room for a token of each text.

        By default the model's, or `default` where that is smaller.
        """
        longest, limit = self.max_input_length()
        if max_length is None:
            return min(longest, default or longest)
        if max_length < specials + 2 or (limit is not None and max_length > limit):
            bounds = f"at least {specials + 2}" if limit is None else f"between {specials + 2} and {limit}"
            raise invalid("max_length", f"{bounds} for this model", max_length)
        return max_length

    def hash_weights(self) -> bytes:
        """A digest of every tensor of the model, with names and shapes."""
        return hash_tensors(self.model)

    def score_config(self) -> dict[str, Any]:
        """The config's settings that differ from the defaults and can change a score."""
        config: dict[str, Any] = self.model.config.to_diff_dict()
        return {key: value for key, value in config.items() if key not in CONFIG_WITHOUT_EFFECT}


def load_pretrained(
    name: str | os.PathLike[str],
    *,
    kind: str,
    device: Any,
    dtype: str,
    subfolder: str = ".",
    as_transformers: bool = False,
) -> Pretrained:
    """Load `kind` (an Auto class of transformers) in evaluation mode on the device.

    The model may be one of this package with the same states, unless `as_transformers` is set.
    """
    torch = import_extra("torch", extra="models")
    transformers = import_extra("transformers", extra="models")
    target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = choose_dtype(dtype, target.type)
    source, folder = os.fspath(name), find_model(name, kind=kind)
    weights_dtype = getattr(torch, "float32" if dtype == "int8" else dtype)
    model, tokenizer = _load(transformers, folder / subfolder, kind, weights_dtype, source, as_transformers)
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(f"The tokenizer of {source} must be a fast one (with a tokenizer.json).")
    if not isinstance(tokenizer.model_max_length, int | float):
        raise InputError(f"{folder}: the model_max_length of its tokenizer must be a number.")
    with loading(folder, "transformers"):
        tokenizer("\N{REPLACEMENT CHARACTER}")  # for which a damaged vocabulary may have no token
    backend_class = import_extra("tokenizers", extra="models").Tokenizer
    backend = backend_class.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    model = model.eval().requires_grad_(False).to(target)
    return Pretrained(model, tokenizer, backend, target, dtype, folder, source)


def choose_dtype(dtype: str, device_type: str) -> str:
    """The precision to load; "auto" is float32 on a CPU and bfloat16 on a GPU."""
    check_choice("dtype", dtype, DTYPES)
    if dtype == "auto":
        return "bfloat16" if device_type == "cuda" else "float32"
    if dtype == "int8" and device_type != "cpu":
        raise InputError(f"`dtype` 'int8' runs on a CPU only, got the device {device_type!r}. Use 'bfloat16' there.")
    return dtype


def _load(
    transformers: Any, folder: Path, kind: str, dtype: Any, source: str, as_transformers: bool
) -> tuple[Any, Any]:
    """Model and tokenizer; only safetensors, and never code from the model's folder."""
    from crossknn.scorers.inference.torch_bert import load_bert  # imports torch

    safe: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    with loading(folder, "transformers"), no_progress_bars():
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), use_fast=True, **safe)
            if not as_transformers:
                config = transformers.AutoConfig.from_pretrained(str(folder), **safe)
                own = load_bert(folder, config, kind=kind, dtype=dtype)
                if own is not None:
                    return own, tokenizer
            model, info = getattr(transformers, kind).from_pretrained(
                str(folder), dtype=dtype, use_safetensors=True, output_loading_info=True, **safe
            )
        except ValueError as error:
            if "trust_remote_code" in str(error):
                raise _remote_code(source) from error
            raise
    # transformers initializes missing weights at random, with no more than a warning.
    pooler_unused = kind == "AutoModel"
    missing = sorted(key for key in info.get("missing_keys", ()) if not (pooler_unused and "pooler" in key))
    if missing and getattr(model.config, "auto_map", None):
        raise _remote_code(source)
    if missing:
        raise InputError(
            f"{source} does not hold every weight of a {kind.removeprefix('AutoModelFor')} model: {missing[0]} and "
            f"{len(missing) - 1} more are missing, so its scores would be random. Use a trained cross-encoder."
        )
    return model, tokenizer


def _remote_code(source: str) -> InputError:
    return InputError(f"{source} runs Python code from its folder, which is never executed. {SERVER_HINT}")


def hash_tensors(module: Any) -> bytes:
    """A digest of every tensor of a module of torch, with names and shapes."""
    torch = import_extra("torch", extra="models")
    digest = blake2b(digest_size=16)
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.digest()


@cache
def check_half_precision(dtype: str) -> None:
    """Raise `InputError` if half-precision matrix products kill the process, as a subprocess finds out once.

    Virtual machines may announce instructions (AMX) that they then forbid, and torch uses them.
    """
    if not sys.executable:
        return
    code = HALF_PRECISION_PROBE.format(dtype=dtype)
    probe = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)  # noqa: S603
    if probe.returncode < 0:
        raise InputError(
            f"`dtype` {dtype!r} would kill this process: torch uses an instruction that this machine announces and "
            f"forbids (signal {-probe.returncode}). Use 'float32' or 'int8', or set the environment variable "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before Python starts."
        )
