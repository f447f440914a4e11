"""`Index`: what was learned offline, frozen, in memory or in a folder. It holds no model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive
from crossknn.encoders.item_encoding import encode_items
from crossknn.engines.local import LOCAL
from crossknn.errors import InputError, MissingExtra
from crossknn.indexing.builder import CHUNK, Build, BuildReport, Built, score_build
from crossknn.indexing.factorization.cur import all_pairs
from crossknn.indexing.factorization.factors import Factors, Method
from crossknn.indexing.factorization.transductive import Transductive
from crossknn.indexing.sampling import PerItem, Sampling, sample_per_item
from crossknn.indexing.score_matrix import SparseScores
from crossknn.items.items import Items
from crossknn.models.fingerprints import is_unnamed
from crossknn.retrievers.bm25 import Bm25
from crossknn.retrievers.bm25_storage import StoredBm25
from crossknn.scorers.timing import Timed
from crossknn.storage.atomic_dir import Folder, Write, read_folder, write_folder
from crossknn.storage.safetensors import read_arrays, write_arrays
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.posterior.prior import SIGNALS, Prior
from crossknn.types import Encoder, Engine, Progress, Retriever, Scorer

VECTORS = "vectors"
BIAS, LATENT_FACTORS = "bias", "latent_factors"  # of a prior
ATTEMPTS = 20  # at opening files of a folder that is replaced meanwhile
DEFAULT_FACTORS = Transductive(method="als", ridge=3.0, epochs=5)  # see benchmarks/README.md


class Index:
    """Items, their vectors, and what was learned from cross-encoder scores; made by `build` or `load`.

    items          what is searched
    vectors        (items, dim) the encoder's
    factors        vectors fitted to scores, or None where the index has the encoder's only
    normalization  α and β
    prior          what `Posterior` begins with, or None where the index was built without
    bm25           the retriever, fitted once
    queries        the train queries that scores were paid for
    scorer         fingerprint of the cross-encoder it was built with
    encoder        fingerprint of the dual encoder it was built with
    report         what the build did
    """

    def __init__(
        self,
        items: Items,
        vectors: NDArray[Any],
        *,
        queries: Sequence[str],
        normalization: Normalization,
        factors: Factors | None,
        prior: Prior | None = None,
        scorer: str,
        encoder: str,
        report: BuildReport,
        bm25: Bm25 | StoredBm25 | None = None,
        folder: Folder | None = None,
    ) -> None:
        self.items = items
        self.vectors = vectors
        self.queries = queries
        self.normalization = normalization
        self.factors = factors
        self.prior = prior
        self.scorer = scorer
        self.encoder = encoder
        self.report = report
        self._bm25 = bm25
        self._folder = folder
        self._check_sizes()

    @classmethod
    def build(
        cls,
        items: Items,
        *,
        scorer: Scorer,
        encoder: Encoder,
        queries: Sequence[str] | None = None,
        sampling: Sampling | Sequence[Sampling] | None = None,
        factors: Method | None = DEFAULT_FACTORS,
        prior: bool = False,
        signals: Sequence[str] = SIGNALS,
        retrievers: Sequence[Retriever] = (),
        work_dir: str | Path | None = None,
        chunk: int = CHUNK,
        seed: int = 0,
        device: str | None = None,
        engine: Engine = LOCAL,
        progress: Progress | None = None,
    ) -> Self:
        """Score some pairs of train queries and items, and fit item vectors to them.

        queries   train queries, like those that will be asked; without them some are cut from the items
        sampling  which pairs: `PerItem(queries=8)`, `PerQuery(items=100)`, or several, whose pairs are merged. By
                  default the first for `Transductive`, the second for `Inductive`, and with a prior seven queries for
                  each item and as many of the fused retriever's best as make it eight
        factors   `Transductive(…)`, `Inductive(…)`, `Cur(…)`, or None: the encoder's vectors as they are, with
                  α and β from 100 queries
        prior     also learn what `Posterior` begins with: what retrievers tell about scores, and each item's own bias
        signals   the retrievers that the prior learns from: "dense", "bm25", "tfidf", "fused", or names of `retrievers`
        retrievers  your own; one of the same name takes the place of one that a sampling or the prior would make
        work_dir  keeps scores and vectors. A build that was interrupted goes on from there, loses at most `chunk`
                  calls, and ends with the same index; later builds with the same scorer reuse its scores
        device    where vectors are searched and fitted: "cpu" (default) or "cuda"
        engine    where items are encoded and pairs scored: in this process, or as `RayEngine(…)` says. The index is
                  the same
        progress  called as `progress(step, done, total)`
        """
        build = Build(
            items,
            scorer=scorer,
            encoder=encoder,
            queries=queries,
            sampling=sampling,
            factors=factors,
            prior=prior,
            signals=signals,
            retrievers=retrievers,
            work_dir=work_dir,
            chunk=chunk,
            seed=seed,
            device=device,
            engine=engine,
            progress=progress,
        )
        return cls.of(build.run(), scorer, encoder)

    @classmethod
    def of(cls, built: Built, scorer: Scorer, encoder: Encoder) -> Self:
        """The index that a `Build` ran for."""
        return cls(
            built.items,
            built.vectors,
            queries=built.queries,
            normalization=built.normalization,
            factors=built.factors,
            prior=built.prior,
            scorer=scorer.fingerprint,
            encoder=encoder.fingerprint,
            report=built.report,
            bm25=built.bm25,
        )

    @property
    def bm25(self) -> Bm25:
        """The retriever with its default settings: as it is kept in the folder, or else fitted now, once."""
        if not isinstance(self._bm25, Bm25):
            kept = None if self._bm25 is None else self._bm25.open()
            self._bm25 = kept or Bm25().fit(self.items)
        return self._bm25

    def save(self, path: str | Path) -> None:
        """Write the index into the folder, in the place of one that is there.

        It is replaced whole: who opens the folder meanwhile gets the old index or the new one, and who has the old
        one open keeps it. BM25 is fitted first where it was not yet; without bm25s installed it is left out.
        """
        bm25 = self._keep_bm25()
        facts = {
            "items": len(self.items),
            "queries": len(self.queries),
            "dim": int(self.vectors.shape[1]),
            "scorer": self.scorer,
            "encoder": self.encoder,
            "normalization": asdict(self.normalization),
            "factors": None if self.factors is None else self.factors.facts(),
            "prior": None if self.prior is None else self.prior.to_dict(),
            "bm25": None if bm25 is None else bm25.settings,
            "report": self.report.as_dict(),
        }
        arrays = self._arrays()
        files: dict[str, Write] = {
            "items.arrow": self.items.to_arrow,
            "queries.arrow": Items(self.queries).to_arrow,
            "vectors.safetensors": lambda file: write_arrays(file, arrays),
        }
        self._folder = write_folder(path, facts, files | ({} if bm25 is None else bm25.files()))

    def _keep_bm25(self) -> StoredBm25 | None:
        try:
            return StoredBm25.of(self.bm25)
        except MissingExtra:
            return None

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Open the index in a folder; its vectors stay on disk and are mapped."""
        for _ in range(ATTEMPTS):
            folder = read_folder(path)
            try:
                return cls._open(folder)
            except FileNotFoundError:  # it was replaced between reading what it holds and opening that
                continue
            except InputError:  # a file that is gone, or one that is damaged
                if folder.is_current():
                    raise
        raise InputError(f"{path}: is being replaced all the time. Try again.")

    @classmethod
    def _open(cls, folder: Folder) -> Self:
        facts = folder.facts
        with _naming(folder):
            files = [folder.files[name] for name in ("vectors.safetensors", "items.arrow", "queries.arrow")]
        arrays, items, queries = read_arrays(files[0]), Items.from_arrow(files[1]), Items.from_arrow(files[2])
        with _naming(folder):
            return cls(
                items,
                arrays[VECTORS],
                queries=queries.texts,
                normalization=Normalization(**facts["normalization"]),
                factors=None if facts["factors"] is None else Factors.load(arrays, facts["factors"]),
                prior=_read_prior(facts, arrays),
                scorer=facts["scorer"],
                encoder=facts["encoder"],
                report=BuildReport.from_dict(facts["report"]),
                bm25=None if facts.get("bm25") is None else StoredBm25.load(folder.files, facts["bm25"], len(items)),
                folder=folder,
            )

    @property
    def identity(self) -> str | None:
        """A hash of all that its folder holds; None where it was never saved."""
        return None if self._folder is None else self._folder.identity

    def is_current(self) -> bool:
        """Whether its folder still holds this index and no newer one; False where it was never saved."""
        return self._folder is not None and self._folder.is_current()

    def verify(self) -> int:
        """Read every byte of the index's folder and compare it with its checksum; how many bytes there are."""
        if self._folder is None:
            raise InputError("only an index in a folder can be verified: save it first.")
        size = self._folder.verify()
        for name, array in self._arrays().items():
            if not np.isfinite(array).all():
                raise InputError(f"{self._folder.path}: {name} holds NaN or infinity. Build the index again.")
        return size

    def check_models(self, *, scorer: Scorer | None = None, encoder: Encoder | None = None) -> None:
        """An error unless these are the models that the index was built with."""
        for what, given, built in (("scorer", scorer, self.scorer), ("encoder", encoder, self.encoder)):
            if given is None or given.fingerprint == built:
                continue
            unnamed = ", a function without a name" if is_unnamed(built) else ""
            raise InputError(
                f"the index was built with another {what} (fingerprint {built!r}{unnamed}). Got {given.fingerprint!r}. "
                "Give that one, build the index anew, or pass check_models=False if they are the same."
            )

    def add(
        self,
        items: Items,
        *,
        scorer: Scorer,
        encoder: Encoder,
        queries_per_item: int = 8,
        work_dir: str | Path | None = None,
        check_models: bool = True,
        progress: Progress | None = None,
    ) -> Self:
        """An index with these items, too.

        Each is scored against `queries_per_item` of the stored train queries (with CUR against all anchors, with
        inductive vectors against none) and gets the vector that explains its scores. The others stay as they are.
        In a prior they have the bias that their vectors let expect.
        """
        if not isinstance(items, Items):
            raise InputError(f"items must be Items, as from Items.from_path(…). Got {type(items).__name__} instead.")
        check_positive("queries_per_item", queries_per_item)
        if check_models:
            self.check_models(scorer=scorer, encoder=encoder)
        clash = next((id_ for id_ in items.ids if id_ in self.items), None)
        if clash is not None:
            raise InputError(f"the index has an item {clash!r} already. Remove it first, or add it under another id.")
        vectors = encode_items(items, encoder, dtype=str(self.vectors.dtype), progress=progress)
        if vectors.shape[1] != self.vectors.shape[1]:
            raise InputError(
                f"the encoder must give {self.vectors.shape[1]} dimensions, as the index has. "
                f"Got {vectors.shape[1]} instead."
            )
        timed = Timed(scorer)
        factors, entries, fitted = self.factors, None, vectors
        if factors is not None:
            if factors.needs_scores:
                entries = self._score_new(items, timed, factors, queries_per_item, work_dir, progress)
            fitted = factors.vectors_of(vectors, entries, self.normalization)
            factors = factors.with_items(np.concatenate([factors.items, fitted]))
        together = Items(chain(self.items.texts, items.texts), ids=chain(self.items.ids, items.ids))
        report = replace(
            self.report,
            items=len(together),
            calls=self.report.calls + (0 if entries is None else len(entries)),
            calls_made=timed.calls,
        )
        prior = None if self.prior is None else self.prior.add(fitted)
        return self._changed(together, np.concatenate([self.vectors, vectors]), factors, prior, report)

    def _score_new(
        self,
        items: Items,
        scorer: Scorer,
        factors: Factors,
        queries_per_item: int,
        work_dir: str | Path | None,
        progress: Progress | None,
    ) -> SparseScores:
        sizes = len(self.queries), len(items)
        if factors.kind == "cur":
            pairs = all_pairs(*sizes)
        else:
            pairs = sample_per_item(PerItem(queries=queries_per_item), n_queries=sizes[0], n_items=sizes[1])
        work = None if work_dir is None else Path(work_dir)
        return score_build(pairs, self.queries, items, scorer, work_dir=work, progress=progress)

    def remove(self, ids: Iterable[str | int]) -> Self:
        """An index without the items of these ids."""
        keep = np.ones(len(self.items), np.bool_)
        keep[self.items.rows_of(ids)] = False
        rows = np.flatnonzero(keep)
        if not len(rows):
            raise InputError("an index must keep at least one item. Got the ids of all of them.")
        items = Items(self.items.texts_of(rows), ids=self.items.ids_of(rows))
        factors = None if self.factors is None else self.factors.with_items(self.factors.items[rows])
        prior = None if self.prior is None else self.prior.take(rows)
        return self._changed(items, self.vectors[rows], factors, prior, replace(self.report, items=len(items)))

    def _arrays(self) -> dict[str, NDArray[Any]]:
        factors = {} if self.factors is None else self.factors.arrays()
        arrays: dict[str, NDArray[Any]] = {VECTORS: self.vectors, **factors}
        if self.prior is not None:
            arrays |= {BIAS: self.prior.bias, LATENT_FACTORS: self.prior.latent_factors.astype(np.float16)}
        return arrays

    def _changed(
        self,
        items: Items,
        vectors: NDArray[Any],
        factors: Factors | None,
        prior: Prior | None,
        report: BuildReport,
    ) -> Self:
        return type(self)(
            items,
            vectors,
            queries=self.queries,
            normalization=self.normalization,
            factors=factors,
            prior=prior,
            scorer=self.scorer,
            encoder=self.encoder,
            report=report,
        )

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        kind = "encoder" if self.factors is None else self.factors.kind
        return f"Index({len(self.items)} items, {self.vectors.shape[1]} dimensions, {kind} vectors)"

    def _check_sizes(self) -> None:
        fitted = len(self.items) if self.factors is None else len(self.factors.items)
        if not len(self.items) == len(self.vectors) == fitted:
            raise InputError(
                f"there must be one vector per item. Got {len(self.items)} items, {len(self.vectors)} vectors "
                f"and {fitted} fitted ones."
            )
        if self.prior is not None and not len(self.prior.bias) == len(self.prior.latent_factors) == len(self.items):
            raise InputError(
                f"there must be one bias per item ({len(self.items)}), and traits. Got {len(self.prior.bias)} and "
                f"{len(self.prior.latent_factors)}."
            )


def _read_prior(facts: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Prior | None:
    if facts.get("prior") is None:
        return None
    return Prior.from_dict(facts["prior"], bias=arrays[BIAS], latent_factors=arrays[LATENT_FACTORS])


@contextmanager
def _naming(folder: Folder) -> Iterator[None]:
    """Errors about what was read from the folder, with its name."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, InputError) as error:
        raise InputError(
            f"{folder.path}: damaged: index.json and the files it names do not fit together ({error!r}). "
            "Restore it from a copy or build the index again."
        ) from error
