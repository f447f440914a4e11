"""`Index`: items, vectors, factors and a prior, learned offline; in memory or in a folder. It holds no model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive
from crossknn._progress import choose_progress
from crossknn.encoders.adapter import AdaptedEncoder, Adapter, without_adapter
from crossknn.encoders.item_encoding import encode_items
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.engines.local import LOCAL
from crossknn.errors import InputError, MissingExtra
from crossknn.indexing.builder import Build, check_items
from crossknn.indexing.factorization.factors import Factors, Method
from crossknn.indexing.pair_scoring import CHUNK, open_score_log, score_pairs_into
from crossknn.indexing.report import BuildReport
from crossknn.indexing.sampling import PerItem, Sampling, sample_per_item
from crossknn.indexing.score_matrix import all_pairs
from crossknn.indexing.score_sources import merge_lists
from crossknn.indexing.teaching.settings import Teaching
from crossknn.indexing.teaching.stored_encoder import StoredEncoder
from crossknn.items.items import Items
from crossknn.models.fingerprints import is_unnamed
from crossknn.models.specs import ModelSpec, read_specs, spec_of
from crossknn.retrievers.bm25 import Bm25, StoredBm25
from crossknn.scorers.timing import Timed
from crossknn.storage.atomic_dir import Folder, Write, read_folder, write_folder
from crossknn.storage.block_file import BlockFile
from crossknn.storage.json_values import read_as
from crossknn.storage.safetensors import check_array, read_arrays, write_arrays
from crossknn.storage.search_log import LoggedSearch
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.posterior.calibration import RecallCalibration
from crossknn.strategies.posterior.prior import SIGNALS, Prior
from crossknn.types import Encoder, Engine, Progress, Retriever, Scorer

FIELD_ORDERS = "field_orders.safetensors"
VECTORS, BIAS, LATENT_FACTORS = "vectors", "bias", "latent_factors"  # names of the arrays on disk, never to change
ROWS = 65_536  # verified at once
LOAD_ATTEMPTS = 20  # while the folder is being replaced
LEARNED_ITEMS = 24  # mined for each search that `learn` is given


@dataclass(eq=False, repr=False)
class Index:
    """Items, their vectors, and what was learned from cross-encoder scores; made by `build` or `load`.

    Attributes:
        vectors: (items, dim) of the encoder.
        queries: The train queries that were scored.
        normalization: α and β.
        factors: Vectors fitted to scores; None if the index has the encoder's only.
        prior: The prior of posterior search; None if the index was built without.
        recall_calibration: Of the expected recall of posterior search; None if the index was built without.
        scorer: Fingerprint of the cross-encoder.
        encoder: Fingerprint of the dual encoder.
        scorer_spec: Name and settings of the cross-encoder, to open it again; None if it has no name, as a function.
        encoder_spec: The same of the dual encoder, before it was taught.
        report: Statistics of the build.
    """

    items: Items
    vectors: NDArray[Any]
    _: KW_ONLY
    queries: Sequence[str]
    normalization: Normalization
    factors: Factors | None
    prior: Prior | None = None
    recall_calibration: RecallCalibration | None = None
    scorer: str
    encoder: str
    report: BuildReport
    scorer_spec: ModelSpec | None = None
    encoder_spec: ModelSpec | None = None
    _bm25: Bm25 | StoredBm25 | None = None
    _taught: StoredEncoder | Adapter | None = None
    _folder: Folder | None = None
    _source: Folder | Path | None = None  # what arrays are mapped from: an index, or the vectors in a work folder

    def __post_init__(self) -> None:
        n_items, fitted = len(self.items), len(self.items if self.factors is None else self.factors.items)
        if not n_items == len(self.vectors) == fitted:
            raise InputError(
                f"An index has one vector per item, got {n_items} items, {len(self.vectors)} vectors "
                f"and {fitted} fitted vectors."
            )
        if self.prior is not None and not len(self.prior.bias) == len(self.prior.latent_factors) == n_items:
            raise InputError(
                f"A prior has one bias and one row of latent factors per item ({n_items}), got {len(self.prior.bias)} "
                f"and {len(self.prior.latent_factors)}."
            )

    @classmethod
    def build(
        cls,
        items: Items,
        *,
        scorer: Scorer,
        encoder: Encoder,
        queries: Sequence[str] | None = None,
        sampling: Sampling | Sequence[Sampling] | None = None,
        factors: Method | Literal["default"] | None = "default",
        prior: bool | Literal["default"] | None = "default",
        teach: Teaching | bool | None = None,
        calibrate: bool | None = None,
        signals: Sequence[str] = SIGNALS,
        retrievers: Sequence[Retriever] = (),
        item_vectors: NDArray[Any] | None = None,
        work_dir: str | Path | None = None,
        chunk: int = CHUNK,
        seed: int = 0,
        device: str | None = None,
        engine: Engine = LOCAL,
        progress: Progress | bool | None = None,
    ) -> Self:
        """Score a sample of train query–item pairs, and fit item vectors and a prior to the scores.

        Args:
            queries: Train queries, like those of later searches; by default pseudo-queries cut from the items.
            sampling: The pairs to score: `PerItem(queries=8)`, `PerQuery(items=100)`, or several, whose pairs are
                merged. By default the first for `Transductive`, the second for `Inductive`, and with a prior 7
                random queries per item plus top items of the fused retriever, together about 8 calls per item.
            factors: `Transductive(…)`, `Inductive(…)`, `Cur(…)`, or None for the encoder's vectors, with α and β
                from 100 queries. By default None with teaching, else `Transductive`.
            prior: Whether to fit the prior of `Posterior`: the mean given by retrievers, item biases, latent factors.
                By default where it needs no more calls: with `Transductive`, a `sampling` or a taught adapter; not with
                a taught encoder, nor with `Cur` and random vectors, which allow none.
            teach: Whether to teach a copy of the encoder by the cross-encoder, or how: `Teaching(…)`. The index holds
                it and encodes queries with it. An encoder that is no `SentenceEncoder` is taught an adapter. None, the
                default, is True where the encoder is a `SentenceEncoder` and the scorer a model, both on a GPU, and
                neither `sampling` nor `factors` are given.
            calibrate: Whether to calibrate expected recall (`stop_at`) on up to 50 held-out queries, with about 900
                calls each. They are those that a teaching holds out, or a fifth of the train queries, which are then
                used for nothing else. None, the default, is True with a prior or a teaching. Left out, with the reason
                in the report, for fewer than 1,000 items, 100 train queries or 20 held-out queries of a teaching.
            signals: The retrievers the prior is fitted to: "dense", "bm25", "tfidf", "fused", or names of `retrievers`.
            retrievers: Your own; one with the name of a built-in retriever replaces it.
            item_vectors: (items, dim) the encoder's vectors of the items, such as those of `import_store`, which are
                then not encoded. A few items are, and vectors unlike theirs are refused.
            work_dir: A folder for scores and vectors. An interrupted build resumes from it, repeats at most `chunk`
                calls, and ends with the same index; later builds with the same scorer reuse its scores.
            chunk: Calls saved together.
            seed: Of everything random.
            device: Where vectors are searched and fitted: "cpu" (default) or "cuda".
            engine: Where items are encoded and pairs scored: this process, or `RayEngine(…)`. Gives the same index.
            progress: Called as `progress(step, done, total)`. By default a bar on a terminal or in a notebook, and
                elsewhere a line in the log every 30 seconds; False for none.
        """
        build = Build(
            items,
            scorer=scorer,
            encoder=encoder,
            queries=queries,
            sampling=sampling,
            factors=factors,
            prior=prior,
            teach=teach,
            calibrate=calibrate,
            signals=signals,
            retrievers=retrievers,
            item_vectors=item_vectors,
            work_dir=work_dir,
            chunk=chunk,
            seed=seed,
            device=device,
            engine=engine,
            progress=choose_progress(progress),
        )
        return cls.from_build(build)

    @classmethod
    def from_build(cls, build: Build) -> Self:
        """Run the build."""
        report = build.run()
        return cls(
            build.items,
            build.vectors,
            queries=build.train_queries,
            normalization=build.normalization,
            factors=build.fitted[0],
            prior=build.fitted_prior,
            recall_calibration=None if build.calibrated is None else build.calibrated.calibration,
            scorer=build.scorer.fingerprint,
            encoder=build.encoder.fingerprint,
            report=report,
            scorer_spec=spec_of(build.scorer),
            encoder_spec=build.encoder_spec,
            _bm25=build.bm25,
            _taught=build.stored_encoder,
            _source=build.vectors_path,
        )

    @property
    def is_taught(self) -> bool:
        """Whether the index has an encoder of its own, or an adapter of one, taught by the cross-encoder."""
        return self._taught is not None

    @property
    def taught(self) -> Literal["encoder", "adapter", "query-adapter"] | None:
        """What of the index was taught by the cross-encoder, if anything."""
        if self._taught is None:
            return None
        if isinstance(self._taught, StoredEncoder):
            return "encoder"
        return "query-adapter" if self._taught.items is None else "adapter"

    @property
    def has_encoder(self) -> bool:
        """Whether the index has an encoder of its own."""
        return isinstance(self._taught, StoredEncoder)

    def open_encoder(self, *, device: str | None = None) -> SentenceEncoder:
        """The taught encoder of the index; `InputError` if it has none."""
        if not isinstance(self._taught, StoredEncoder):
            raise InputError("the index has no encoder of its own: give the one that it was built with.")
        return self._taught.open(device=device)

    def choose_encoder(self, given: Encoder | None, *, device: str | None = None) -> Encoder | None:
        """The taught encoder in place of none, or of the one that was taught; else the given one, with its adapter."""
        taught = self._taught
        if isinstance(taught, Adapter):
            return given if given is None or given.fingerprint == self.encoder else AdaptedEncoder(given, taught)
        if taught is None or (given is not None and given.fingerprint != taught.base):
            return given
        if device is None and isinstance(given, SentenceEncoder):
            device = str(given.device)
        return self.open_encoder(device=device)

    @property
    def bm25(self) -> Bm25:
        """BM25 with default settings, from the folder or fitted on first use."""
        if not isinstance(self._bm25, Bm25):
            stored = None if self._bm25 is None else self._bm25.open()
            self._bm25 = stored or Bm25().fit(self.items)
        return self._bm25

    def save(self, path: str | Path, *, replaces: str | None = None) -> None:
        """Write the index to a folder, replacing any index there atomically.

        Readers that open the folder meanwhile get the old index or the new one, and open ones stay valid. BM25 is
        fitted first if necessary; it is left out if bm25s is not installed.

        Args:
            path: A new or empty folder, or one that holds an index.
            replaces: The `identity` of the index that this one was made from: `InputError` if the folder holds another
                by now, so that of two concurrent changes none is lost.
        """
        try:
            bm25 = StoredBm25.of(self.bm25)
        except MissingExtra:
            bm25 = None
        facts = {
            "items": len(self.items),
            "queries": len(self.queries),
            "indexed_fields": list(self.items.indexed_fields),
            "dim": int(self.vectors.shape[1]),
            "scorer": self.scorer,
            "encoder": self.encoder,
            "models": {
                "scorer": None if self.scorer_spec is None else self.scorer_spec.as_dict(),
                "encoder": None if self.encoder_spec is None else self.encoder_spec.as_dict(),
            },
            "normalization": asdict(self.normalization),
            "factors": None if self.factors is None else self.factors.facts(),
            "prior": None if self.prior is None else self.prior.to_dict(),
            "recall_calibration": None if self.recall_calibration is None else asdict(self.recall_calibration),
            "bm25": None if bm25 is None else bm25.settings,
            "taught": self._taught.facts if isinstance(self._taught, StoredEncoder) else None,
            "adapter": self._taught.facts if isinstance(self._taught, Adapter) else None,
            "report": self.report.as_dict(),
        }
        files: dict[str, Write] = {
            "items.arrow": self.items.write_arrow,
            "queries.arrow": Items(self.queries).write_arrow,
        }
        if self.items.indexed_fields:
            files[FIELD_ORDERS] = self.items.write_orders
        if bm25 is not None:
            files |= bm25.files()
        if isinstance(self._taught, StoredEncoder):
            files |= self._taught.files()
        self._folder = write_folder(
            path, facts, files | {"vectors.safetensors": self._write_vectors}, replaces=replaces
        )

    def _write_vectors(self, path: Path) -> None:
        """The last file of a save, which is given up if what it was read from does not hold."""
        write_arrays(path, self._arrays())
        self._check_source()

    def _check_source(self) -> None:
        """Raise `InputError` if a file that arrays are mapped from was damaged, even after it was opened."""
        source = self._source
        if isinstance(source, Folder) and source.is_current():
            source.verify()
        if isinstance(source, Path) and BlockFile.stored(source).count_rows() < len(self):
            raise InputError(
                f"{source}: damaged after the build read it. Build again: damaged vectors are computed again."
            )

    def _arrays(self) -> dict[str, NDArray[Any]]:
        arrays = {VECTORS: self.vectors, **({} if self.factors is None else self.factors.arrays())}
        if self.prior is not None:
            arrays |= {BIAS: self.prior.bias, LATENT_FACTORS: self.prior.latent_factors.astype(np.float16)}
        if isinstance(self._taught, Adapter):
            arrays |= self._taught.arrays()
        return arrays

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = False) -> Self:
        """Open the index in a folder; vectors are memory-mapped.

        Places that files name, such as rows and offsets, are checked to exist; `verify` reads and checks everything.
        """
        for _ in range(LOAD_ATTEMPTS):
            folder = read_folder(path)
            try:
                index = cls._open(folder)
                if verify:
                    index.verify()
                return index
            except FileNotFoundError:  # replaced after the manifest was read
                continue
            except InputError:  # a file that is missing or damaged
                if folder.is_current():
                    raise
        raise InputError(f"{path} is replaced by another process again and again. Try again.")

    @classmethod
    def _open(cls, folder: Folder) -> Self:
        facts = folder.facts
        with _naming(folder):
            files = [folder.files[name] for name in ("vectors.safetensors", "items.arrow", "queries.arrow")]
        arrays, items, queries = read_arrays(files[0]), Items.from_arrow(files[1]), Items.from_arrow(files[2])
        with _naming(folder):
            items.check_ids()
            queries.check_texts()
            if indexed := read_as(list[str], facts.get("indexed_fields", []), "indexed_fields"):  # or earlier versions
                items = items.with_orders(folder.files[FIELD_ORDERS], indexed)
            check_array(VECTORS, arrays[VECTORS], (len(items), None), np.floating)
            for name, count in (("items", len(items)), ("queries", len(queries)), ("dim", arrays[VECTORS].shape[1])):
                if facts.get(name, count) != count:
                    raise InputError(f"{name} must be {count}, got {facts[name]}.")
            factors = facts["factors"]
            scorer_spec, encoder_spec = read_specs(facts)
            prior, bm25, taught, adapter = map(facts.get, ("prior", "bm25", "taught", "adapter"))
            if prior is not None:
                prior = Prior.from_dict(prior, bias=arrays[BIAS], latent_factors=arrays[LATENT_FACTORS])
            index = cls(
                items,
                arrays[VECTORS],
                queries=queries.texts,
                normalization=read_as(Normalization, facts["normalization"], "normalization"),
                factors=None if factors is None else Factors.load(arrays, factors),
                prior=prior,
                recall_calibration=read_as(  # earlier versions have none
                    RecallCalibration | None, facts.get("recall_calibration"), "recall_calibration"
                ),
                scorer=read_as(str, facts["scorer"], "scorer"),
                encoder=read_as(str, facts["encoder"], "encoder"),
                report=BuildReport.from_dict(facts["report"]),
                scorer_spec=scorer_spec,
                encoder_spec=encoder_spec,
                _bm25=None if bm25 is None else StoredBm25.load(folder.files, bm25, len(items)),
                _taught=_load_taught(folder, arrays, taught, adapter),
                _folder=folder,
                _source=folder,
            )
            index._check_widths()
            return index

    def _check_widths(self) -> None:
        """Raise `InputError` unless all parts are of the same vector spaces."""
        width, factors = self.vectors.shape[1], self.factors
        fitted = width if factors is None else factors.items.shape[1]
        widths = {"vectors": (width, max(width, 1))}
        if factors is not None and factors.with_encoder:
            widths["fitted vectors"] = (fitted, width)
        if factors is not None and factors.kind == "transductive":
            check_array("of the train queries", factors.train, (len(self.queries), fitted), np.floating)
        if factors is not None and factors.nets is not None:
            widths["nets"] = (factors.nets.dim, width)
        if self.prior is not None:
            widths["bias weights of the prior"] = (len(self.prior.bias_weights), fitted + 1)
        if isinstance(self._taught, Adapter):
            widths["adapter"] = (len(self._taught.queries["b2"]), width)
        for name, (found, wanted) in widths.items():
            if found != wanted:
                raise InputError(f"the {name} must be {wanted} wide, got {found}.")

    @property
    def identity(self) -> str | None:
        """A hash of the folder's content; None if the index was never saved."""
        return None if self._folder is None else self._folder.identity

    @property
    def stored_bytes(self) -> int:
        """The bytes of the folder's files; 0 if the index was never saved."""
        return 0 if self._folder is None else self._folder.size

    @property
    def file_bytes(self) -> dict[str, int]:
        """The bytes of each of the folder's files, by plain name; empty if the index was never saved."""
        return {} if self._folder is None else self._folder.sizes

    def is_current(self) -> bool:
        """Whether the folder still holds this index; False if it was never saved."""
        return self._folder is not None and self._folder.is_current()

    def verify(self) -> int:
        """Compare every file of the folder with its checksum; the number of bytes read.

        Numbers must be finite and texts UTF-8, too.
        """
        if self._folder is None:
            raise InputError("Only an index in a folder can be verified: save it first.")
        size = self._folder.verify()
        with _naming(self._folder):
            self.items.check_texts()
        weights = {} if self._bm25 is None else {"weights": self._bm25.postings.weights}
        for name, array in {**self._arrays(), **weights}.items():
            if not _is_finite(array):
                raise InputError(f"{self._folder.path}: {name} holds NaN or infinity. Build the index again.")
        return size

    def check_models(self, *, scorer: Scorer | None = None, encoder: Encoder | None = None) -> None:
        """Raise `InputError` unless these are the models that the index was built with."""
        for name, given, built in (("scorer", scorer, self.scorer), ("encoder", encoder, self.encoder)):
            if given is None or given.fingerprint == built:
                continue
            if name == "encoder" and self._taught is not None and given.fingerprint == self._taught.base:
                continue
            built = self._taught.base if name == "encoder" and isinstance(self._taught, Adapter) else built
            unnamed = ", an unnamed function" if is_unnamed(built) else ""
            hint = "Give that one, build the index again, or pass check_models=False if they are the same."
            if name == "encoder" and self.has_encoder:
                hint = "Leave it out: the index has its own, taught by the cross-encoder."
            raise InputError(
                f"the index was built with another {name} (fingerprint {built!r}{unnamed}), got {given.fingerprint!r}. "
                f"{hint}"
            )

    def add(
        self,
        items: Items,
        *,
        scorer: Scorer,
        encoder: Encoder | None = None,
        queries_per_item: int = 8,
        work_dir: str | Path | None = None,
        chunk: int = CHUNK,
        check_models: bool = True,
        progress: Progress | bool | None = None,
    ) -> Self:
        """An index that has these items, too; the vectors of the others do not change.

        Each new item is scored against `queries_per_item` train queries (all anchors with CUR, none with inductive
        vectors) and gets the vector that fits its scores. Its bias in a prior is predicted from its vector. Without an
        `encoder` the index's own is used. Scores are kept in `work_dir`, `chunk` calls at a time.
        """
        self.check_new(items)
        check_positive("queries_per_item", queries_per_item)
        progress = choose_progress(progress)
        if check_models:
            self.check_models(scorer=scorer, encoder=encoder)
        encoder = self.choose_encoder(encoder) or self.open_encoder()
        vectors = encode_items(items, encoder, dtype=str(self.vectors.dtype), progress=progress)
        if vectors.shape[1] != self.vectors.shape[1]:
            raise InputError(
                f"`encoder` must give {self.vectors.shape[1]} dimensions, as in the index, got {vectors.shape[1]}."
            )
        timed = Timed(scorer)
        factors, entries, fitted = self.factors, None, vectors
        if factors is not None:
            if factors.nets is None:
                n_queries, plan = len(self.queries), PerItem(queries=queries_per_item)
                pairs = (
                    all_pairs(n_queries, len(items))
                    if factors.kind == "cur"
                    else sample_per_item(plan, n_queries=n_queries, n_items=len(items))
                )
                log = open_score_log(None if work_dir is None else Path(work_dir), scorer)
                entries = score_pairs_into(log, pairs, self.queries, items, timed, chunk=chunk, progress=progress)
            fitted = factors.vectors_of(vectors, entries, self.normalization)
            factors = replace(factors, items=np.concatenate([factors.items, fitted]))
        together = self.items.extend(items)
        calls = self.report.calls + (0 if entries is None else len(entries))
        return self._change(
            items=together,
            vectors=np.concatenate([self.vectors, vectors]),
            factors=factors,
            prior=None if self.prior is None else self.prior.add(fitted),
            report=replace(self.report, items=len(together), calls=calls, calls_made=timed.calls),
            **self._specs(scorer, encoder),
        )

    def check_new(self, items: Items) -> None:
        """Raise `InputError` unless these items can be added."""
        check_items(items)
        duplicate = next((id_ for id_ in items.ids if id_ in self.items), None)
        if duplicate is not None:
            raise InputError(f"the index has an item {duplicate!r} already. Remove it first, or use another id.")

    def learn(
        self,
        searches: Iterable[LoggedSearch],
        *,
        scorer: Scorer,
        encoder: Encoder | None = None,
        teach: Teaching | None = None,
        work_dir: str | Path | None = None,
        chunk: int = CHUNK,
        device: str | None = None,
        check_models: bool = True,
        progress: Progress | bool | None = None,
    ) -> Self:
        """An index of the same items whose encoder has learned from searches: what they scored, plus mined items.

        Vectors are those of the encoder then, and the prior, if the index has one, is fitted again to the same scores.
        Items that the index no longer has are left out. If the learning does not help on held-out searches, all but the
        report stays as it is.

        Args:
            searches: As from `read_scored_lists`.
            encoder: Not needed by an index that has an encoder of its own.
            teach: By default one round over all searches, with 24 more calls for each.
            work_dir: A folder for scores and checkpoints, from which an interrupted learning resumes.
            chunk: Calls saved together, the most that a kill can lose.
            device: Of the training, by default that of the encoder.
        """
        if check_models:
            self.check_models(scorer=scorer, encoder=encoder)
        chosen = self.choose_encoder(encoder, device=device)
        if chosen is None:
            raise InputError("`learn` trains an encoder or its adapter: give the one that the index was built with.")
        known = merge_lists(searches, self.items)
        settings = teach or _learning(len(known), len(self.items), chosen, device)
        build = Build(
            self.items,
            scorer=scorer,
            encoder=chosen,
            queries=[one.query for one in known],
            teach=settings,
            searches=known,
            prior=self.prior is not None,
            signals=SIGNALS if self.prior is None else self.prior.signals,
            work_dir=work_dir,
            chunk=chunk,
            seed=settings.seed,
            device=device,
            progress=choose_progress(progress),
        )
        learned = self.from_build(build)
        done = learned.report
        if done.teaching is None or not done.teaching.helped:
            report = replace(self.report, teaching=done.teaching, calls_made=done.calls_made, seconds=done.seconds)
            return replace(self, report=report)
        if self._taught is not None and learned._taught is not None:  # it was taught before
            learned._taught = replace(learned._taught, base=self._taught.base)
        learned._bm25 = learned._bm25 or self._bm25  # of the same items
        return replace(learned, **self._specs(scorer, encoder))

    def _specs(self, scorer: Scorer, encoder: Encoder | None) -> dict[str, Any]:
        """What is remembered of the models: the names by which they were opened now, if they are those of the index."""
        base = self.encoder if self._taught is None else self._taught.base
        encoder = without_adapter(encoder) if encoder is not None else None
        found = spec_of(scorer) if scorer.fingerprint == self.scorer else None
        found_encoder = spec_of(encoder) if encoder is not None and encoder.fingerprint == base else None
        return {"scorer_spec": found or self.scorer_spec, "encoder_spec": found_encoder or self.encoder_spec}

    def remove(self, ids: Iterable[str | int]) -> Self:
        """An index without the items of these ids."""
        keep = np.ones(len(self.items), np.bool_)
        keep[self.items.rows_of(ids)] = False
        rows = np.flatnonzero(keep)
        if not len(rows):
            raise InputError("An index must keep at least one item, got the ids of all.")
        items = self.items.take(rows)
        return self._change(
            items=items,
            vectors=self.vectors[rows],
            factors=None if self.factors is None else replace(self.factors, items=self.factors.items[rows]),
            prior=None if self.prior is None else self.prior.take(rows),
            report=replace(self.report, items=len(items)),
        )

    def _change(self, **changes: Any) -> Self:
        """A changed copy, not saved yet."""
        self._check_source()
        return replace(self, **changes, _bm25=None, _folder=None, _source=None)

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        kind = "encoder" if self.factors is None else self.factors.kind
        return f"Index({len(self.items)} items, {self.vectors.shape[1]} dimensions, {kind} vectors)"


def _load_taught(
    folder: Folder, arrays: Mapping[str, NDArray[Any]], taught: Any, adapter: Any
) -> StoredEncoder | Adapter | None:
    if adapter is not None:
        return Adapter.load(arrays, adapter)
    return None if taught is None else StoredEncoder.load(folder.files, taught)


def _learning(queries: int, items: int, encoder: Encoder, device: str | None) -> Teaching:
    """The default settings for lists that are scored already."""
    if isinstance(encoder, SentenceEncoder):
        settings = Teaching.default(items, device=str(encoder.device))
    else:
        for_queries = isinstance(encoder, AdaptedEncoder) and encoder.adapter.items is None
        settings = Teaching.default(items, student="query-adapter" if for_queries else "adapter", device=device)
    return replace(settings, lists=queries, rounds=1, items_per_list=min(LEARNED_ITEMS, settings.items_per_list))


def _is_finite(array: NDArray[Any]) -> bool:
    rows = np.atleast_1d(array)
    return all(bool(np.isfinite(rows[start : start + ROWS]).all()) for start in range(0, len(rows), ROWS))


@contextmanager
def _naming(folder: Folder) -> Iterator[None]:
    """Name the folder in errors about its content."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError) and str(error).startswith(str(folder.path)):
            raise
        problem = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
        raise InputError(
            f"{folder.path}: damaged: index.json and the files it names do not fit together ({problem}). "
            "Restore it from a copy or build the index again."
        ) from error
