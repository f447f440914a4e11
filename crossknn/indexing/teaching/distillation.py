"""DE_dstl: the dual encoder itself, fine-tuned until it ranks the scored items as the cross-encoder does."""

from __future__ import annotations

import math
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive
from crossknn._imports import import_extra
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.errors import EncoderError, InputError
from crossknn.indexing.builder import Build
from crossknn.indexing.factorization.trainer import Training, blocks, check_number, shuffled_batches
from crossknn.indexing.factorization.transductive import Transductive
from crossknn.indexing.sampling import PerQuery, Sampling
from crossknn.indexing.score_matrix import SparseScores
from crossknn.indexing.teaching.token_cache import Features, KeptTokens
from crossknn.items.fields import describe
from crossknn.items.items import Items
from crossknn.models.hub import no_progress_bars
from crossknn.models.torch_attention import without_cudnn_attention
from crossknn.storage.atomic import sync, unfinished
from crossknn.strategies.normalization import Normalization
from crossknn.types import Progress, Scorer

if TYPE_CHECKING:
    from torch import Tensor

STEP = "distilling"  # what progress is reported as
QUERY, ITEM = "query", "document"  # sentence-transformers' names for the two sides
TEMPERATURE_QUERIES = 100  # whose lists the temperature is measured on, as many as the paper's α and β
PAPER_SAMPLING = PerQuery(items=100, retriever="dense")
TEXTS_AT_ONCE = defaultdict(lambda: 32, cuda=512)  # by the kind of device
MOST_APART = 0.03  # share of its length by which a vector may differ when it is computed in bfloat16


@dataclass(frozen=True, kw_only=True)
class Distillation(Training):
    """DE_dstl: every parameter of a dual encoder, by cross-entropy over each train query's *list*, its scored items.

    Target is the softmax of the list's raw scores, which fixes them up to a constant; learned is the softmax of the
    dual encoder's inner products, divided by `temperature`. A query with fewer than two scored items has no list.

    batch            lists per step of AdamW, over which the paper accumulates gradients
    held_out         share of the queries: their lists are not learned but check the fit after each epoch
    items_per_query  of a longer list so many items are drawn at random, anew in each epoch
    texts_at_once    texts whose activations are held in memory; changes the time it takes, not the result. None: 32
                     on a CPU, 512 on a GPU, where smaller parts take several times as long
    temperature      None measures it: inner products and scores then vary equally within the lists to begin with.
                     The paper has none (1), which vectors of length 1 cannot do with: their products differ too little
    time_limit       seconds after which no further step is made; the epoch so cut counts like a whole one. The
                     paper's is 24 hours. None: no limit

    The rest is in `Training`. Dropout is off (the paper does not say), so that what is learned is what is measured,
    and the same seed gives the same weights on a CPU. On a GPU, bfloat16 by autocast; weights are float32 always.

    Memory, besides the activations: five times the model's weights, with gradients, two moments and the best epoch;
    and the tokens of the texts, of up to 200,000.
    Nothing is saved on the way: a fit that was killed begins again.
    """

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"learning_rate": 1e-5, "batch": 4, "epochs": 10},  # 100 items per query
        "paper-large": {"learning_rate": 1e-5, "batch": 4, "epochs": 4},  # 1000 items per query
    }

    learning_rate: float = 1e-5
    batch: int = 4
    items_per_query: int = 1000
    texts_at_once: int | None = None
    temperature: float | None = None
    time_limit: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("items_per_query", self.items_per_query)
        if self.items_per_query < 2:
            raise InputError("items_per_query must be at least 2: one item alone is no list. Got 1 instead.")
        if self.texts_at_once is not None:
            check_positive("texts_at_once", self.texts_at_once)
        for name, value in (("temperature", self.temperature), ("time_limit", self.time_limit)):
            if value is not None:
                check_number(name, value, positive=True)

    def fit(
        self,
        entries: SparseScores,
        encoder: SentenceEncoder,
        queries: Sequence[str],
        items: Items | Sequence[str],
        folder: str | Path,
        *,
        progress: Progress | None = None,
    ) -> Distilled:
        """Fine-tune a copy of the encoder's model; it is written to `folder`, which must not exist yet.

        `queries` are the texts of the train queries, `items` those of all items. The encoder stays as it is. Its
        prompts and `max_tokens` become the new model's own; `normalize=False` must be given again to open it.
        """
        start = time.perf_counter()
        texts = _Texts.check(queries, items, entries)
        fitted, held_out = self.split(_drop_short(entries))
        target = _make_room(Path(folder))
        student = _Student(encoder, self)
        student.check_vectors(texts, fitted)
        report = _Learner(student, texts, self, start, progress).train(_Lists.of(fitted), _Lists.of(held_out))
        student.save(target)
        return Distilled(SentenceEncoder(target, device=self.device or "cpu", normalize=encoder.normalize), report)

    def split(self, entries: SparseScores) -> tuple[SparseScores, SparseScores]:
        """(entries to fit, entries held out); all of a query's are on the same side."""
        _, firsts = np.unique(entries.pairs.queries, return_index=True)
        _, held_out = super().split(entries.take(firsts))
        apart = np.isin(entries.pairs.queries, held_out.pairs.queries)
        return entries.take(~apart), entries.take(apart)


def distill(
    items: Items,
    folder: str | Path,
    *,
    scorer: Scorer,
    encoder: SentenceEncoder,
    queries: Sequence[str] | None = None,
    sampling: Sampling | Sequence[Sampling] = PAPER_SAMPLING,
    settings: Distillation | None = None,
    work_dir: str | Path | None = None,
    seed: int = 0,
    device: str | None = None,
    progress: Progress | None = None,
) -> Distilled:
    """Score pairs as `Index.build` does, and fine-tune a copy of the encoder on them, written to `folder`.

    The settings that both have are those of `Index.build`; with the same `work_dir` both use the same scores.
    Build an index with the encoder that comes back.
    """
    settings = settings or Distillation(seed=seed, device=device)
    target = _make_room(Path(folder))  # said before anything is scored
    build = Build(
        items,
        scorer=scorer,
        encoder=encoder,
        queries=queries,
        sampling=sampling,
        factors=Transductive(),
        work_dir=work_dir,
        seed=seed,
        device=device,
        progress=progress,
    )
    return settings.fit(build.score(), encoder, build.queries, items, target, progress=progress)


class DistillReport(TypedDict):
    """How a distillation went. Errors are mean cross-entropies of a list; what was held out is None where nothing was.

    All are of lists cut to `items_per_query`.
    """

    queries: int  # whose lists were fitted
    held_out_queries: int
    epochs: int  # that were begun
    best_epoch: int  # whose weights were written; 0 is the start
    stopped_early: bool  # by what was held out
    out_of_time: bool
    seconds: float
    temperature: float
    train_errors: list[float]  # of each epoch, while it learned
    held_out_error_before: float | None
    held_out_error: float | None
    held_out_errors: list[float]  # before the first epoch and after each
    held_out_entropy: float | None  # of the targets: no error is lower


@dataclass(frozen=True)
class Distilled:
    """The fine-tuned dual encoder, opened from its folder, and how the fit went."""

    encoder: SentenceEncoder
    report: DistillReport


@dataclass(frozen=True)
class _Texts:
    """What the entries are about."""

    queries: Sequence[str]
    items: Items

    @classmethod
    def check(cls, queries: Sequence[str], items: Items | Sequence[str], entries: SparseScores) -> _Texts:
        if isinstance(queries, str) or not all(isinstance(query, str) for query in queries):
            wrong = queries if isinstance(queries, str) else next(q for q in queries if not isinstance(q, str))
            raise InputError(f"queries must be a list of strings. Got {describe(wrong)} instead.")
        items = items if isinstance(items, Items) else Items(items)
        pairs = entries.pairs
        for name, have, wanted in (("queries", queries, pairs.n_queries), ("items", items, pairs.n_items)):
            if len(have) != wanted:
                raise InputError(f"{name} must be the {wanted} that the entries number. Got {len(have)} instead.")
        return cls(queries, items)

    def queries_of(self, lists: Sequence[SparseScores]) -> list[str]:
        """The query of each list."""
        return [self.queries[one.pairs.queries[0]] for one in lists]


@dataclass(frozen=True)
class _Lists:
    """Entries, those of a query together: list `i` is `entries[ends[i] : ends[i + 1]]`."""

    entries: SparseScores
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, entries: SparseScores) -> _Lists:
        counts = np.unique(entries.pairs.queries, return_counts=True)[1]
        order = np.argsort(entries.pairs.queries, kind="stable")
        return cls(entries.take(order), np.concatenate(([0], np.cumsum(counts))))

    def __len__(self) -> int:
        return len(self.ends) - 1

    def draw(self, number: int, most: int, rng: np.random.Generator) -> SparseScores:
        """One list, or a random part of it where it is longer than `most`."""
        one = self.entries.take(slice(self.ends[number], self.ends[number + 1]))
        return one if len(one) <= most else one.take(np.sort(rng.choice(len(one), most, replace=False)))


class _Student:
    """A copy of a dual encoder while it learns."""

    def __init__(self, encoder: SentenceEncoder, settings: Distillation) -> None:
        self._torch = import_extra("torch", extra="models")
        self._checkpoint = import_extra("torch.utils.checkpoint", extra="models").checkpoint
        self._encoder = _copy(encoder, settings.device or "cpu")
        self._model = self._encoder._model
        self._model.prompts = {**self._model.prompts, **_given_prompts(encoder)}
        self.device = self._model.device
        self._at_once = settings.texts_at_once or TEXTS_AT_ONCE[self.device.type]
        self.parameters = [value for value in self._model.parameters() if value.requires_grad]
        self._kept: list[Tensor] = []
        self._tokens = {side: KeptTokens(partial(self._tokenize, side)) for side in (QUERY, ITEM)}

    def encode(self, side: str, texts: Sequence[str]) -> Tensor:
        """(texts, dim) float32, for gradients to flow through; they compute activations again, some texts at a time."""
        order = np.argsort([len(text) for text in texts], kind="stable")  # texts of like length waste less padding
        parts = [
            self._features(side, [texts[at] for at in order[block]]) for block in blocks(len(texts), self._at_once)
        ]
        if len(parts) == 1:
            vectors = self._read(side, parts[0])
        else:
            again = {"use_reentrant": False, "preserve_rng_state": False}
            vectors = self._torch.cat([self._checkpoint(self._read, side, part, **again) for part in parts])
        result: Tensor = vectors[self._torch.from_numpy(np.argsort(order)).to(self.device)]
        return result

    def check_vectors(self, texts: _Texts, entries: SparseScores) -> None:
        """An error if the vectors that would be learned are not those that the encoder gives."""
        queries, items = texts.queries_of([entries]), texts.items.texts_of(entries.pairs.rows[:1])
        with self._torch.no_grad():
            own = self._torch.cat([self.encode(QUERY, queries), self.encode(ITEM, items)]).cpu().numpy()
        used = np.concatenate([self._encoder.encode_queries(queries), self._encoder.encode_items(items)])
        apart = np.linalg.norm(own - used, axis=1) / np.linalg.norm(used, axis=1)
        if not apart.max() < MOST_APART:
            raise EncoderError(
                f"{self._encoder.name}: cannot be fine-tuned, for sentence-transformers encodes texts with it in a way "
                f"that distillation does not know (vectors differ by {apart.max():.0%}). Upgrade sentence-transformers."
            )

    def keep(self) -> None:
        """Remember the present weights, and forget those that were kept before."""
        self._kept = [value.detach().clone() for value in self.parameters]

    def go_back(self) -> None:
        """Return to the weights that were kept."""
        with self._torch.no_grad():
            for value, kept in zip(self.parameters, self._kept, strict=True):
                value.copy_(kept)

    def save(self, folder: Path) -> None:
        """Write the model; the folder is there whole or not at all."""
        broken_write = import_extra("safetensors", extra="models").SafetensorError
        fresh = temporary_path(folder)
        try:
            with no_progress_bars():
                self._model.save_pretrained(str(fresh), create_model_card=False)
            for path in fresh.rglob("*"):
                sync(path)
            fresh.rename(folder)
        except (OSError, broken_write) as error:
            raise InputError(f"{folder}: the model could not be written ({error}).") from error
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        sync(folder.parent)

    def _tokenize(self, side: str, texts: list[str]) -> Features:
        model = self._model
        prompt = model.prompts.get(side, model.prompts.get(model.default_prompt_name))
        if hasattr(model, "preprocess"):
            return dict(model.preprocess(texts, prompt=prompt, **self._task(side)))
        # sentence-transformers before 6
        return dict(model.tokenize([f"{prompt or ''}{text}" for text in texts], **self._task(side)))

    def _read(self, side: str, features: Features) -> Tensor:
        """(texts, dim) float32: what the encoder gives, but with its history."""
        half = self._torch.autocast("cuda", self._torch.bfloat16, enabled=self.device.type == "cuda")
        with half, without_cudnn_attention(self.device):
            found = self._model(dict(features), **self._task(side))  # a copy, for the model fills in its results
        vectors: Tensor = found["sentence_embedding"][:, : self._model.truncate_dim].float()
        return self._torch.nn.functional.normalize(vectors) if self._encoder.normalize else vectors

    def _task(self, side: str) -> dict[str, str]:
        return {"task": side} if hasattr(self._model, "encode_query") else {}  # sentence-transformers 5 and later

    def _features(self, side: str, texts: list[str]) -> Features:
        features = self._tokens[side].features(texts)
        return {name: v.to(self.device) if self._torch.is_tensor(v) else v for name, v in features.items()}


class _Learner:
    """The epochs of one fit."""

    def __init__(
        self, student: _Student, texts: _Texts, settings: Distillation, start: float, progress: Progress | None
    ) -> None:
        self._torch = import_extra("torch", extra="models")
        self._student, self._texts, self._settings = student, texts, settings
        self._start, self._progress = start, progress
        self._rng = np.random.default_rng((settings.seed, 1))
        self._optimizer = self._torch.optim.AdamW(
            student.parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        self._temperature = settings.temperature or 1.0
        self._done = 0  # lists that were learned from, over all epochs

    def train(self, fitted: _Lists, held_out: _Lists) -> DistillReport:
        """Run the epochs, stop early or in time, leave the best weights in the student, and say how it went."""
        settings, total = self._settings, self._settings.epochs * len(fitted)
        if settings.temperature is None:
            self._temperature = self._measure_temperature(fitted)
        checks = self._draw(held_out, range(len(held_out)))
        errors, train_errors = self._measure(checks, epoch=0), list[float]()
        watched = bool(errors) and settings.patience is not None
        patience = settings.patience or settings.epochs
        best = epoch = 0
        while epoch < settings.epochs and epoch - best < patience and not self._is_over():
            if watched and best == epoch:
                self._student.keep()
            epoch += 1
            train_errors.append(self._run_epoch(fitted, epoch, total))
            errors += self._measure(checks, epoch=epoch)
            if not watched or errors[epoch] < errors[best]:
                best = epoch
        if best < epoch:
            self._student.go_back()
        if self._progress is not None and self._done < total:
            self._progress(STEP, total, total)
        out_of_time = self._done < total and self._is_over()
        return DistillReport(
            queries=len(fitted),
            held_out_queries=len(held_out),
            epochs=epoch,
            best_epoch=best,
            stopped_early=self._done < total and not out_of_time,
            out_of_time=out_of_time,
            seconds=self._seconds(),
            temperature=self._temperature,
            train_errors=train_errors,
            held_out_error_before=errors[0] if errors else None,
            held_out_error=errors[best] if errors else None,
            held_out_errors=errors,
            held_out_entropy=float(np.mean([_entropy(one.scores) for one in checks])) if checks else None,
        )

    def _run_epoch(self, fitted: _Lists, epoch: int, total: int) -> float:
        """The mean error while it learned; ends early when the time is over."""
        errors: list[float] = []
        for chosen in shuffled_batches(len(fitted), self._settings.batch, self._rng):
            lists = self._draw(fitted, chosen)
            found = self._errors(lists)
            errors += found.tolist()
            _check_finite(math.isfinite(sum(errors)), epoch)
            self._optimizer.zero_grad()
            self._torch.autograd.backward(found.mean())
            self._optimizer.step()
            self._tick(len(chosen), total)
            if self._is_over():
                break
        self._measure(lists[:1], epoch=epoch)  # the last step, too, may have broken what was learned
        return float(np.mean(errors))

    def _draw(self, lists: _Lists, numbers: Iterable[int]) -> list[SparseScores]:
        return [lists.draw(number, self._settings.items_per_query, self._rng) for number in numbers]

    def _errors(self, lists: Sequence[SparseScores]) -> Tensor:
        """(lists,) cross-entropy between the softmax of a list's scores and that of its estimates."""
        measure = self._torch.nn.functional.cross_entropy
        scores = [self._torch.from_numpy(one.scores).to(self._student.device) for one in lists]
        products = self._products(lists)
        errors = [measure(p / self._temperature, s.softmax(0)) for p, s in zip(products, scores, strict=True)]
        return self._torch.stack(errors)  # type: ignore[no-any-return]

    def _products(self, lists: Sequence[SparseScores]) -> list[Tensor]:
        """The inner products of each list's query with its items; an item of several lists is encoded once."""
        rows, places = np.unique(np.concatenate([one.pairs.rows for one in lists]), return_inverse=True)
        items = self._student.encode(ITEM, self._texts.items.texts_of(rows))
        queries = self._student.encode(QUERY, self._texts.queries_of(lists))
        each = items[self._torch.from_numpy(places).to(items.device)]
        parts = self._torch.split(each, [len(one) for one in lists])
        return [part @ query for part, query in zip(parts, queries, strict=True)]

    def _measure(self, lists: list[SparseScores], *, epoch: int) -> list[float]:
        """The mean error on these lists, if there are any."""
        errors: list[float] = []
        with self._torch.no_grad():
            for block in blocks(len(lists), self._settings.batch):
                errors += self._errors(lists[block]).tolist()
        _check_finite(math.isfinite(sum(errors)), epoch)
        return [float(np.mean(errors))] if errors else []

    def _measure_temperature(self, fitted: _Lists) -> float:
        """The paper's β, which scales scores to inner products, of what differs within lists."""
        scores, products = [], []
        with self._torch.no_grad():
            for number in self._rng.permutation(len(fitted))[:TEMPERATURE_QUERIES]:
                [one] = self._draw(fitted, [number])
                [found] = self._products([one])
                scores.append(one.scores - one.scores.mean())
                products.append((found - found.mean()).cpu().numpy())
        return Normalization.fit(np.concatenate(scores), np.concatenate(products)).beta

    def _tick(self, lists: int, total: int) -> None:
        self._done += lists
        if self._progress is not None:
            self._progress(STEP, self._done, total)

    def _is_over(self) -> bool:
        return self._settings.time_limit is not None and self._seconds() > self._settings.time_limit

    def _seconds(self) -> float:
        return time.perf_counter() - self._start


def _copy(encoder: SentenceEncoder, device: str) -> SentenceEncoder:
    """The same encoder once more, in float32."""
    return SentenceEncoder(
        encoder.folder,
        device=device,
        dtype="float32",
        normalize=encoder.normalize,
        query_prompt=encoder._prompts[QUERY],
        item_prompt=encoder._prompts[ITEM],
        max_tokens=encoder.max_tokens,
    )


def _given_prompts(encoder: SentenceEncoder) -> dict[str, str]:
    """Those that were given in the place of the model's own."""
    return {side: prompt for side, prompt in encoder._prompts.items() if prompt is not None}


def _drop_short(entries: SparseScores) -> SparseScores:
    """The entries of queries that have at least two."""
    counts = np.bincount(entries.pairs.queries, minlength=entries.pairs.n_queries)
    kept = entries.take(counts[entries.pairs.queries] >= 2)
    if not len(kept):
        raise InputError(
            f"entries must hold two scored items of some query. Got {len(entries)} entries, at most one per query."
        )
    return kept


def _make_room(folder: Path) -> Path:
    """The folder to write, which is not there yet; the one that it will be in is."""
    if folder.exists():
        raise InputError(f"{folder}: exists already. Give a new folder for the fine-tuned model.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror or error}).") from error
    return folder


def _entropy(scores: NDArray[np.float32]) -> float:
    """Of the softmax of a list's scores."""
    shifted = scores.astype(np.float64) - scores.max()
    weights = np.exp(shifted)
    return float(np.log(weights.sum()) - (weights * shifted).sum() / weights.sum())


def _check_finite(finite: bool, epoch: int) -> None:
    if not finite:
        raise InputError(
            f"the fit broke down in epoch {epoch}: NaN or infinity in what was learned. Lower learning_rate, or raise "
            "temperature where it is far below 0.01."
        )
