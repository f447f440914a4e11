"""What a model's folder holds: a classifier, a language model, an encoder with a head of modules, or a dual encoder.

sentence-transformers writes `modules.json`, which lists the modules of a model and where their weights are. It is read
here, and modules are made here, because its own loader can run code that a model's folder names.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from crossknn._imports import import_extra
from crossknn.errors import InputError

CLASSIFIER, LANGUAGE_MODEL, ENCODER = "AutoModelForSequenceClassification", "AutoModelForCausalLM", "AutoModel"
HEAD_MODULES: Final = ("Dense", "LayerNorm", "Dropout")
POOLINGS: Final = ("cls", "mean", "lasttoken", "max")
LEGACY_POOLINGS: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
}
SERVER_HINT: Final = (
    "Serve it with software that has its code, such as vLLM or text-embeddings-inference, and give the server's URL to "
    "crossknn.RemoteScorer."
)
# Settings of a dual encoder's transformer that change nothing.
PLAIN_TRANSFORMER: Final = {
    "do_lower_case": False,
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
LISTWISE: Final = ("JinaForRanking",)  # classes of models that score all items of a request together


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A reranker's folder.

    Attributes:
        kind: The Auto class of transformers that loads its transformer,
        transformer: from this folder.
        pooling: How an encoder with a head of several modules pools its tokens.
        head: These modules: their kinds, configs and folders.
        tokens: The true token, and the false one if there is one, that a language model is read at.
        prompt: The prompt that sentence-transformers puts before each query by default.
        max_length: Tokens of a pair at most.
        chat_options: Variables of the chat template.
    """

    kind: str
    transformer: Path
    pooling: str | None = None
    head: tuple[tuple[str, dict[str, Any], Path], ...] = ()
    tokens: tuple[int, int | None] | None = None
    prompt: str | None = None
    max_length: int | None = None
    chat_options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EncoderFolder:
    """The folder of a dual encoder that is a transformer, a pooling of its tokens, and layers behind them.

    Attributes:
        transformer: The folder of the transformer.
        pooling: How tokens are pooled.
        head: The layers behind the pooling: their kinds, configs and folders.
        normalize: Whether vectors have length 1 by the model's own modules.
        prompts: What is put before texts, by side, such as "query".
        max_length: Tokens of a text at most, if the folder says so.
    """

    transformer: Path
    pooling: str
    head: tuple[tuple[str, dict[str, Any], Path], ...]
    normalize: bool
    prompts: dict[str, str]
    max_length: int | None


def read_encoder_folder(folder: Path) -> EncoderFolder | None:
    """What the folder of a dual encoder holds; None where it is unusual in any way.

    `InputError` where it is invalid.
    """
    names = _read_modules(folder)
    kinds = [name for name, _ in names]
    normalize = kinds[-1:] == ["Normalize"]
    middle = names[2 : len(names) - normalize]
    if kinds[:2] != ["Transformer", "Pooling"] or not all(name in HEAD_MODULES for name, _ in middle):
        return None
    types = [one["type"] for one in _read_json(folder / "modules.json", list)]
    transformer = names[0][1]
    config, settings = _read_json(transformer / "config.json"), _read_json(transformer / "sentence_bert_config.json")
    of_others = not all(str(one).startswith("sentence_transformers.") for one in types) or "auto_map" in config
    if of_others or config.get("is_encoder_decoder") or (transformer / "adapter_config.json").exists():
        return None
    max_length = settings.pop("max_seq_length", None)
    head = tuple((name, _read_json(path / "config.json"), path) for name, path in middle)
    last = _read_json(names[-1][1] / "config.json") if normalize else {}
    modules = [last, *(module for _, module, _ in head)]
    of_tokens = any(
        module.get(end, "sentence_embedding") not in (None, "sentence_embedding")
        for module in modules
        for end in ("module_input_name", "module_output_name")
    )
    if of_tokens or any(PLAIN_TRANSFORMER.get(key) != value for key, value in settings.items()):
        return None
    saved = _read_json(folder / "config_sentence_transformers.json").get("prompts") or {}
    prompts = {side: prompt for side, prompt in saved.items() if prompt}
    pooling = _read_pooling(_read_json(names[1][1] / "config.json"), folder)
    return EncoderFolder(transformer, pooling, head, normalize, prompts, max_length)


def read_model_folder(folder: Path) -> ModelFolder:
    """What the folder holds, or `InputError` where that is no reranker that can be run here."""
    names = _read_modules(folder)
    transformer = names[0][1] if names else folder
    if names and names[0][0] != "Transformer":
        raise InputError(f"{folder / 'modules.json'}: the first module must be a Transformer, got {names[0][0]!r}.")
    architecture = _check_architecture(_read_json(transformer / "config.json"), folder)
    settings = _read_json(transformer / "sentence_bert_config.json")
    saved = _read_json(folder / "config_sentence_transformers.json")
    common: dict[str, Any] = {
        "transformer": transformer,
        "prompt": (saved.get("prompts") or {}).get(saved.get("default_prompt_name")) or None,
        "max_length": settings.get("max_seq_length"),
        "chat_options": _chat_options(settings),
    }
    kinds = [name for name, _ in names[1:]]
    if not kinds:
        return ModelFolder(LANGUAGE_MODEL if architecture.endswith("ForCausalLM") else CLASSIFIER, **common)
    configs = [_read_json(path / "config.json") for _, path in names[1:]]
    if kinds == ["LogitScore"]:
        true, false = configs[0].get("true_token_id"), configs[0].get("false_token_id")
        if not isinstance(true, int) or not isinstance(false, int | None):
            raise InputError(f"{names[1][1]}: `true_token_id` must be a number, and `false_token_id` one or none.")
        return ModelFolder(LANGUAGE_MODEL, tokens=(true, false), **common)
    if kinds[0] != "Pooling" or not set(kinds[1:]) <= set(HEAD_MODULES):
        unknown = next(name for name in kinds if name not in ("Pooling", *HEAD_MODULES))
        raise InputError(f"{folder}: its module {unknown!r} is none of a cross-encoder's. {SERVER_HINT}")
    head = tuple(zip(kinds[1:], configs[1:], [path for _, path in names[2:]], strict=True))
    return ModelFolder(ENCODER, pooling=_read_pooling(configs[0], folder), head=head, **common)


def _check_architecture(config: dict[str, Any], folder: Path) -> str:
    """The class of a transformer, or `InputError` where it cannot score a pair of texts here."""
    transformers = import_extra("transformers", extra="models")
    name = str((config.get("architectures") or [""])[0])
    if name in LISTWISE:
        raise InputError(
            f"{folder} is a listwise reranker ({name}): its score of an item depends on the other items of a request, "
            "so that a search would have no fixed scores. Use a reranker that scores each pair by itself."
        )
    code = config.get("auto_map") or {}
    named = [str(code.get(kind, "")).rpartition(".")[2] for kind in (CLASSIFIER, LANGUAGE_MODEL, ENCODER)]
    listed = set(getattr(transformers, "__all__", ()))  # to ask for a class would import it, which takes a second
    for needed in filter(None, [name, *named]):
        if needed not in listed and not hasattr(transformers, needed):
            raise InputError(
                f"{folder} needs the class {needed}, which transformers {transformers.__version__} does not have, and "
                f"Python code from a model's folder is never executed. {SERVER_HINT}"
            )
    if name.endswith("ForConditionalGeneration"):
        multimodal = any(key in config for key in ("vision_config", "audio_config"))
        kind = "multimodal" if multimodal else "sequence-to-sequence"
        raise InputError(f"{folder} is a {kind} model ({name}), which is not supported here. {SERVER_HINT}")
    return name


def _read_modules(folder: Path) -> list[tuple[str, Path]]:
    """The class name and the folder of each module, in order; none where there is no `modules.json`."""
    path = folder / "modules.json"
    modules = _read_json(path, list)
    if not all(isinstance(one, dict) and isinstance(one.get("path"), str) for one in modules):
        raise InputError(f"{path}: must be a list of modules with their paths.")
    found = [(str(one.get("type", "")).rpartition(".")[2], folder / one["path"]) for one in modules]
    for _, place in found:
        if not place.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{path}: modules must be in the model's folder, got {place}.")
    return found


def _read_json(path: Path, kind: type[Any] = dict) -> Any:
    """A JSON object, or a list; empty where there is no such file."""
    if not path.is_file():
        return kind()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: invalid JSON ({error}).") from error
    if not isinstance(found, kind):
        raise InputError(f"{path}: must be a JSON {'object' if kind is dict else 'list'}, got {type(found).__name__}.")
    return found


def _chat_options(settings: dict[str, Any]) -> dict[str, Any]:
    chosen = (settings.get("processing_kwargs") or {}).get("chat_template") or {}
    sizes = ("restore_suffix", "padding", "truncation", "max_length", "return_tensors")
    return {name: value for name, value in chosen.items() if name not in sizes}


def _read_pooling(config: dict[str, Any], folder: Path) -> str:
    modes = config.get("pooling_mode") or [name for key, name in LEGACY_POOLINGS.items() if config.get(key)]
    pooling = modes if isinstance(modes, str) else ",".join(modes)
    if pooling not in POOLINGS or config.get("include_prompt") is False:
        raise InputError(f"{folder}: its pooling must be one of {', '.join(POOLINGS)} over all tokens, got {config}.")
    return pooling


def make_head(modules: tuple[tuple[str, dict[str, Any], Path], ...], dtype: Any) -> Any:
    """A head of several modules, as one module of torch."""
    torch = import_extra("torch", extra="models")
    load_file = import_extra("safetensors.torch", extra="models").load_file
    layers = []
    for kind, config, path in modules:
        if kind == "Dropout":
            continue
        if kind == "LayerNorm":
            layer = torch.nn.LayerNorm(config["dimension"])
        else:
            layer = torch.nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
            if config.get("use_residual"):
                raise InputError(f"{path}: a Dense module with a residual connection cannot be run here. {SERVER_HINT}")
        weights = load_file(path / "model.safetensors")
        layer.load_state_dict({name.rpartition(".")[2]: tensor for name, tensor in weights.items()})
        layers.append(layer)
        if kind == "Dense":
            layers.append(_activation(torch, config.get("activation_function", "torch.nn.Tanh"), path))
    return torch.nn.Sequential(*layers).to(dtype)


def _activation(torch: Any, name: str, path: Path) -> Any:
    """An activation of torch by its full name, such as `torch.nn.modules.activation.GELU`."""
    found = getattr(torch.nn, name.rpartition(".")[2], None)
    if not name.startswith("torch.nn.") or not isinstance(found, type) or not issubclass(found, torch.nn.Module):
        raise InputError(f"{path}: the activation must be one of torch.nn, got {name!r}.")
    return found()
