"""The models that an index was built with, opened by the names that it remembers, or by others that a user gives."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self

from crossknn.encoders.sentence import SentenceEncoder
from crossknn.errors import InputError, MissingExtra, ModelNotFound
from crossknn.models.fingerprints import is_unnamed
from crossknn.models.specs import SCORERS, ModelSpec, public_url, read_specs
from crossknn.scorers.cross_encoder import CrossEncoder
from crossknn.scorers.emb_cross_encoder import EmbCrossEncoder, is_emb_cross_encoder
from crossknn.scorers.remote.http_scorer import is_url
from crossknn.scorers.remote.logprob import LogprobScorer, is_completion_url
from crossknn.scorers.remote.scorer import RemoteScorer
from crossknn.storage.atomic_dir import read_folder
from crossknn.types import Encoder, Scorer

if TYPE_CHECKING:
    from crossknn.indexing.index import Index

Role = Literal["scorer", "encoder"]
CLASSES: Final[Mapping[str, Any]] = {
    "CrossEncoder": CrossEncoder,
    "EmbCrossEncoder": EmbCrossEncoder,
    "RemoteScorer": RemoteScorer,
    "LogprobScorer": LogprobScorer,
    "SentenceEncoder": SentenceEncoder,
}


@dataclass(frozen=True)
class RememberedModel:
    """The scorer or the encoder of an index.

    Attributes:
        fingerprint: Of the model.
        spec: How to open it; None if it has no name, as a function.
    """

    role: Role
    fingerprint: str
    spec: ModelSpec | None

    def choose(self, given: str | None = None, *, same: bool = True) -> ModelSpec:
        """How to open the model: as it is remembered, or by the name that the user gives.

        A name in place of the remembered one keeps the settings, for it should be the same model elsewhere, unless the
        user says that it need not be the `same`. A server is never called because an index names it: the user has to.
        """
        spec = self.spec
        if given is None:
            return self._remembered()
        if spec is not None and not spec.omitted and _names(given, spec):
            return replace(spec, name=given.partition("#")[0]) if spec.is_server else spec
        if spec is not None and same and not spec.is_server and not is_url(given):
            return replace(spec, name=given)
        return named_spec(self.role, given)

    def _remembered(self) -> ModelSpec:
        spec = self.spec
        if spec is None:
            found = "an unnamed function" if is_unnamed(self.fingerprint) else f"fingerprint {self.fingerprint!r:.200}"
            raise InputError(
                f"the index does not know its {self.role} by name, which was given as an object ({found}). "
                f"Give `{self.role}`."
            )
        if spec.omitted:
            raise InputError(
                f"the index was built with {spec} and its own {' and '.join(spec.omitted)}, which are not kept because "
                f"they may hold a key. Give `{self.role}`, a {spec.kind} with them."
            )
        if spec.is_server:
            raise InputError(
                f"the index was built with the scores of a server, {spec.full_name}. It would get your queries, items "
                f"and API key, so name it if you trust it: give `{self.role}` {shlex.quote(spec.full_name)}"
            )
        return spec

    @contextmanager
    def explaining(self, spec: ModelSpec) -> Iterator[None]:
        """Say in errors which model of the index cannot be opened, unless the user has named another."""
        try:
            yield
        except (ModelNotFound, MissingExtra) as error:
            if spec is not self.spec:
                raise
            elsewhere = f" If it is elsewhere now, give `{self.role}` its folder." * isinstance(error, ModelNotFound)
            raise type(error)(f"the {self.role} of the index, {spec}, cannot be opened: {error}{elsewhere}") from error


class RememberedModels(NamedTuple):
    """Both models of an index."""

    scorer: RememberedModel
    encoder: RememberedModel  # that was taught, if the index has its own
    has_encoder: bool

    @classmethod
    def of(cls, source: Path | Index) -> Self:
        """Those of an index, or of the one in a folder."""
        if not isinstance(source, Path):
            scorer = RememberedModel("scorer", source.scorer, source.scorer_spec)
            return cls(scorer, RememberedModel("encoder", source.encoder, source.encoder_spec), source.has_encoder)
        facts = read_folder(source).facts
        try:
            specs = read_specs(facts)
        except ValueError as error:
            raise InputError(f"{source}: damaged: index.json does not say which models it has ({error}).") from error
        scorer = RememberedModel("scorer", str(facts.get("scorer")), specs[0])
        encoder = RememberedModel("encoder", str(facts.get("encoder")), specs[1])
        return cls(scorer, encoder, facts.get("taught") is not None)

    def open_scorer(self, given: str | None = None, *, same: bool = True, device: str | None = None) -> Scorer:
        """The scorer of the index, or the one given by name."""
        spec = self.scorer.choose(given, same=same)
        with self.scorer.explaining(spec):
            return open_scorer(spec, device=device)

    def open_encoder(self, given: str | None = None, *, same: bool = True, device: str | None = None) -> Encoder | None:
        """The encoder given by name or remembered; None where none is given and the index has its own."""
        if given is None and self.has_encoder:
            return None
        spec = self.encoder.choose(given, same=same)
        with self.encoder.explaining(spec):
            return open_encoder(spec, device=device)


def named_spec(role: Role, name: str) -> ModelSpec:
    """A model by its name alone, as the user typed it."""
    if role == "encoder":
        return ModelSpec("SentenceEncoder", name, {})
    if is_url(name):
        return ModelSpec("LogprobScorer" if is_completion_url(name) else "RemoteScorer", name, {})
    return ModelSpec("EmbCrossEncoder" if is_emb_cross_encoder(name) else "CrossEncoder", name, {})


def open_scorer(spec: ModelSpec, *, device: str | None = None, **settings: Any) -> Scorer:
    """The scorer, with further settings in place of those of the spec; a server has no device."""
    for setting in settings:
        if setting not in SCORERS[spec.kind] and not spec.is_server:
            raise InputError(f"`{setting}` does not apply to an {spec.kind}, which the scorer is. Leave it out.")
    settings = {**spec.settings, **settings}
    if not spec.is_server:
        settings["device"] = "cpu" if device is None and settings.get("dtype") == "int8" else device
    scorer: Scorer = CLASSES[spec.kind](spec.name, **settings)
    return scorer


def open_encoder(spec: ModelSpec, *, device: str | None = None) -> Encoder:
    """The encoder."""
    encoder: Encoder = CLASSES[spec.kind](spec.name, device=device, **spec.settings)
    return encoder


def _names(given: str, spec: ModelSpec) -> bool:
    """Whether a user's name is that of the model: the same URL and model, or the same folder."""
    if not spec.is_server:
        return given == spec.name or str(Path(given).expanduser().absolute()) == spec.name
    url, _, model = given.partition("#")
    return public_url(url) == spec.name and model in ("", spec.settings.get("model", ""))
