"""How to open a model again: its kind, its name, and the settings that change its scores or vectors; never a key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import urlsplit

from crossknn.storage.json_values import read_as

MAX_NAME: Final = 4_096  # characters, the longest path of Linux
_TEXT_PAIRS: Final[dict[str, Any]] = {
    "dtype": str,
    "max_length": int,
    "max_query_tokens": int,
    "max_item_tokens": int,
    "long_items": str,
    "stride": int,
}
_REQUESTS: Final[dict[str, Any]] = {
    "model": str,
    "max_item_chars": int,
    "long_items": str,
    "stride": int,
    "fallback_score": float,
    "fingerprint": str,
}
_PROMPT: Final[dict[str, Any]] = {"template": str, "instruction": str}
SCORERS: Final[dict[str, dict[str, Any]]] = {  # by class, the types of the arguments that a spec may hold
    "CrossEncoder": {**_TEXT_PAIRS, **_PROMPT, "label": int, "true_token": int | str, "false_token": int | str},
    "EmbCrossEncoder": {
        **_TEXT_PAIRS,
        "query_pooling": str,
        "item_pooling": str,
        "mention_tokens": list[str],
        "title_token": str,
    },
    "RemoteScorer": {**_REQUESTS, "dialect": str, "logits": bool},
    "LogprobScorer": {**_REQUESTS, **_PROMPT, "true_token": str, "false_token": str, "top_logprobs": int},
}
ENCODERS: Final[dict[str, dict[str, Any]]] = {
    "SentenceEncoder": {"dtype": str, "normalize": bool, "query_prompt": str, "item_prompt": str, "max_tokens": int}
}
SERVERS: Final = ("RemoteScorer", "LogprobScorer")


@dataclass(frozen=True)
class ModelSpec:
    """A model by class, name and arguments.

    Attributes:
        kind: The class, such as "CrossEncoder".
        name: A hub name, an absolute folder or "embedded"; or a URL without user, query and fragment.
        settings: Arguments of the class but the name, without those that are None.
        omitted: Arguments that are not kept, because they may hold a secret; the model cannot be opened without.
    """

    kind: str
    name: str
    settings: Mapping[str, Any]
    omitted: Sequence[str] = ()

    @classmethod
    def of(cls, model: object, name: str, settings: Mapping[str, Any], *, omitted: Sequence[str] = ()) -> Self | None:
        """The spec of a model; None if it cannot be opened by a spec, as one of a class of the user's."""
        given = {setting: value for setting, value in settings.items() if value is not None}
        given = {setting: list(value) if isinstance(value, tuple) else value for setting, value in given.items()}
        try:
            return cls(type(model).__name__, name, given, list(omitted)).checked({**SCORERS, **ENCODERS}, "model")
        except ValueError:
            return None

    @classmethod
    def read(cls, value: Any, kinds: Mapping[str, Mapping[str, Any]], role: str) -> Self | None:
        """The spec in a manifest, which anybody may have written; `ValueError` unless it is of one of these kinds."""
        spec: Self | None = read_as(_Stored | None, value, role)
        return None if spec is None else cls(spec.kind, spec.name, spec.settings, spec.omitted).checked(kinds, role)

    def checked(self, kinds: Mapping[str, Mapping[str, Any]], role: str) -> Self:
        """The spec, or `ValueError` that says what is wrong with it."""
        if self.kind not in kinds:
            raise ValueError(f"{role}.kind must be one of {', '.join(kinds)}")
        if not self.name or not self.name.isprintable() or len(self.name) > MAX_NAME:
            raise ValueError(f"{role}.name must be a name, a folder or a URL")
        if self.is_server and self.name != public_url(self.name):
            raise ValueError(f"{role}.name must be a URL without a user, a query or a fragment")
        types = kinds[self.kind]
        for setting, value in self.settings.items():
            if setting not in types:
                raise ValueError(f"{setting!r} is unknown in {role}.settings")
            read_as(types[setting], value, f"{role}.settings.{setting}")
        if not all(name.isidentifier() for name in self.omitted):
            raise ValueError(f"{role}.omitted must be names of arguments")
        return self

    @property
    def is_server(self) -> bool:
        """Whether the model is behind a server."""
        return self.kind in SERVERS

    def as_dict(self) -> dict[str, Any]:
        """What `read` reads."""
        return {"kind": self.kind, "name": self.name, "settings": dict(self.settings), "omitted": list(self.omitted)}

    def __str__(self) -> str:
        return f"{self.kind}({self.full_name!r})"

    @property
    def full_name(self) -> str:
        """The name as `--scorer` takes it: a server's model follows a `#`."""
        return f"{self.name}#{self.settings['model']}" if "model" in self.settings else self.name


@dataclass(frozen=True)
class _Stored:
    """A spec as JSON."""

    kind: str
    name: str
    settings: dict[str, Any]
    omitted: list[str]


def read_specs(facts: Mapping[str, Any]) -> tuple[ModelSpec | None, ModelSpec | None]:
    """Scorer and encoder in the facts of an index; `ValueError` for what no index would say."""
    models = facts.get("models", {})
    if not isinstance(models, dict) or not models.keys() <= {"scorer", "encoder"}:
        raise ValueError("models must be those of an index")
    return (
        ModelSpec.read(models.get("scorer"), SCORERS, "models.scorer"),
        ModelSpec.read(models.get("encoder"), ENCODERS, "models.encoder"),
    )


def public_url(url: str) -> str | None:
    """The URL without user, password, query and fragment, any of which may be secret; None if it is no URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.netloc:
        return None
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def spec_of(model: Any) -> ModelSpec | None:
    """How to open a scorer or an encoder again, also inside wrappers that change no score; None without a name."""
    spec = getattr(model, "spec", None)
    if isinstance(spec, ModelSpec):
        return spec
    inner = getattr(model, "scorer", None)
    same = inner is not None and getattr(inner, "fingerprint", None) == model.fingerprint
    return spec_of(inner) if same else None
