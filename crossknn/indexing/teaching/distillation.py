"""Knowledge distillation of the dual encoder (DE_dstl): fine-tuning on the cross-encoder's score distributions."""

from __future__ import annotations

import math
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_number, check_positive, invalid
from crossknn._imports import import_extra
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.errors import EncoderError, InputError
from crossknn.indexing.builder import Build
from crossknn.indexing.factorization.trainer import Training, batches, shuffled_batches
from crossknn.indexing.factorization.transductive import Transductive
from crossknn.indexing.sampling import PerQuery, Sampling
from crossknn.indexing.score_matrix import SparseScores
from crossknn.items.items import Items
from crossknn.models.hub import no_progress_bars
from crossknn.models.torch_attention import attention_of_any_shape
from crossknn.storage.atomic import sync, unfinished
from crossknn.strategies.normalization import Normalization
from crossknn.types import Progress, Scorer

if TYPE_CHECKING:
    from torch import Tensor

PROGRESS_STEP = "distilling"
QUERY, ITEM = "query", "document"  # sentence-transformers' names of the two sides
TEMPERATURE_QUERIES = 100  # that the temperature is measured on, as many as for the paper's α and β
PAPER_SAMPLING = PerQuery(items=100, retriever="dense")
TEXTS_AT_ONCE = defaultdict(lambda: 32, cuda=512)  # by type of device
MAX_RELATIVE_ERROR = 0.03  # of a vector computed in bfloat16
MAX_TOKENIZED_TEXTS = 200_000  # kept in memory: about a gigabyte with 256 tokens each

Features = dict[str, Any]
"""The input of a sentence-transformers model: token ids, attention mask."""


@dataclass(frozen=True, kw_only=True)
class Distillation(Training):
    """DE_dstl: fine-tune all parameters of a dual encoder by soft cross-entropy over each query's scored items.

    The target is the softmax of the query's raw scores, the prediction the softmax of the dual encoder's inner
    products divided by `temperature`. Queries with fewer than two scored items are left out.

    Dropout is off (the paper does not say), so that the same seed gives the same weights on a CPU. A GPU computes in
    bfloat16 by autocast; weights stay float32. Memory besides activations: five times the model's weights (gradients,
    two moments, checkpoint), and the tokens of up to 200,000 texts. Nothing is saved on the way: an interrupted fit
    starts over.

    Args:
        batch: Queries per step of AdamW, over which the paper accumulates gradients.
        held_out: The share of queries held out to measure the error after each epoch.
        items_per_query: Of more scored items, this many are drawn at random, again in each epoch.
        texts_at_once: Texts whose activations are in memory together; affects time, not the result. None is 32 on a
            CPU and 512 on a GPU, where smaller parts take several times as long.
        temperature: None measures it, so that inner products and scores initially vary equally within queries. The
            paper has none (1), which does not suit unit vectors: their inner products vary too little.
        time_limit: Seconds after which no further step is made; the unfinished epoch counts like a whole one. The
            paper's is 24 hours. None is unlimited.
        epochs, learning_rate, weight_decay, patience, seed, device: See `Training`.
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
            raise invalid("items_per_query", "at least 2", self.items_per_query)
        if self.texts_at_once is not None:
            check_positive("texts_at_once", self.texts_at_once)
        for name, value in (("temperature", self.temperature), ("time_limit", self.time_limit)):
            if value is not None:
                check_number(name, value)

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
        """Fine-tune a copy of the encoder's model and save it.

        Args:
            entries: The scores to learn.
            encoder: Stays as it is. Its prompts and `max_tokens` become the new model's own; `normalize=False` must
                be given again to open it.
            queries: The texts of the train queries.
            items: All items, or their texts.
            folder: Of the new model; must not exist yet.
            progress: Called as `progress(step, done, total)`.
        """
        start = time.perf_counter()
        texts = _Texts.check(queries, items, entries)
        fitted, held_out = self.split(_drop_single_items(entries))
        target = _check_new_folder(Path(folder))
        student = _Student(encoder, self)
        student.check_vectors(texts, fitted)
        trainer = _Trainer(student, texts, self, start, progress)
        report = trainer.train(_ScoredLists.group(fitted), _ScoredLists.group(held_out))
        student.save(target)
        return Distilled(SentenceEncoder(target, device=self.device or "cpu", normalize=encoder.normalize), report)

    def split(self, entries: SparseScores) -> tuple[SparseScores, SparseScores]:
        """(training entries, held-out entries), split by query."""
        _, firsts = np.unique(entries.pairs.queries, return_index=True)
        _, held_out = super().split(entries.take(firsts))
        is_held_out = np.isin(entries.pairs.queries, held_out.pairs.queries)
        return entries.take(~is_held_out), entries.take(is_held_out)


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
    """Score pairs as `Index.build` does, and fine-tune a copy of the encoder on them.

    Settings with the names of `Index.build`'s mean the same; with the same `work_dir` both share scores. Build an
    index with the encoder that is returned. The new model is saved to `folder`, which must not exist yet.
    """
    settings = settings or Distillation(seed=seed, device=device)
    target = _check_new_folder(Path(folder))  # before anything is scored
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
    return settings.fit(build.score(), encoder, build.train_queries, items, target, progress=progress)


class DistillReport(TypedDict):
    """Training statistics. Errors are mean cross-entropies per query, with at most `items_per_query` items each.

    Held-out ones are None if nothing was held out.
    """

    queries: int  # trained on
    held_out_queries: int
    epochs: int  # begun
    best_epoch: int  # the one saved; 0 is the start
    stopped_early: bool  # by the held-out error
    out_of_time: bool
    seconds: float
    temperature: float
    train_errors: list[float]  # of each epoch, during training
    held_out_error_before: float | None
    held_out_error: float | None
    held_out_errors: list[float]  # before the first epoch and after each
    held_out_entropy: float | None  # of the targets, the lower bound of the error


@dataclass(frozen=True)
class Distilled:
    """The fine-tuned dual encoder, opened from its folder, and its training statistics."""

    encoder: SentenceEncoder
    report: DistillReport


@dataclass(frozen=True)
class _Texts:
    queries: Sequence[str]
    items: Items

    @classmethod
    def check(cls, queries: Sequence[str], items: Items | Sequence[str], entries: SparseScores) -> _Texts:
        if isinstance(queries, str) or not all(isinstance(query, str) for query in queries):
            raise invalid("queries", "a list of strings", queries)
        items = items if isinstance(items, Items) else Items(items)
        pairs = entries.pairs
        for name, texts, count in (("queries", queries, pairs.n_queries), ("items", items, pairs.n_items)):
            if len(texts) != count:
                raise InputError(f"`{name}` must be the {count} that `entries` refer to, got {len(texts)}.")
        return cls(queries, items)

    def queries_of(self, lists: Sequence[SparseScores]) -> list[str]:
        """The query of each list."""
        return [self.queries[one.pairs.queries[0]] for one in lists]


@dataclass(frozen=True)
class _ScoredLists:
    """The scored items of each query: list `i` is `entries[bounds[i] : bounds[i + 1]]`."""

    entries: SparseScores
    bounds: NDArray[np.int64]

    @classmethod
    def group(cls, entries: SparseScores) -> _ScoredLists:
        counts = np.unique(entries.pairs.queries, return_counts=True)[1]
        order = np.argsort(entries.pairs.queries, kind="stable")
        return cls(entries.take(order), np.concatenate(([0], np.cumsum(counts))))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def draw(self, number: int, max_length: int, rng: np.random.Generator) -> SparseScores:
        """One list, or a random part of it if it is longer than `max_length`."""
        one = self.entries.take(slice(self.bounds[number], self.bounds[number + 1]))
        return one if len(one) <= max_length else one.take(np.sort(rng.choice(len(one), max_length, replace=False)))


class TokenCache:
    """Tokenizes each text once, up to `max_texts` of them, and pads batches again.

    Features with padding other than on the right cannot be cached: then all texts are tokenized every time.
    """

    def __init__(self, tokenize: Callable[[list[str]], Features], *, max_texts: int = MAX_TOKENIZED_TEXTS) -> None:
        self._torch = import_extra("torch", extra="models")
        self._tokenize = tokenize
        self._max_texts = max_texts
        self._cached: dict[str, Features] = {}
        self._padding: dict[str, int] = {}
        self._constant: Features = {}  # the same for all texts

    def features(self, texts: Sequence[str]) -> Features:
        """The features of these texts, padded to the longest."""
        new = [text for text in dict.fromkeys(texts) if text not in self._cached]
        if len(self._cached) + len(new) > self._max_texts:
            return self._tokenize(list(texts))
        if new and not self._add(new, self._tokenize(new)):
            self._max_texts = 0
            return self._tokenize(list(texts))
        pad = self._torch.nn.utils.rnn.pad_sequence
        cached = [self._cached[text] for text in texts]
        padded = {
            name: pad([one[name] for one in cached], batch_first=True, padding_value=value).long()
            for name, value in self._padding.items()
        }
        return {**padded, **self._constant}

    def _add(self, texts: list[str], features: Features) -> bool:
        """Cache the features of each text; False if they cannot be separated."""
        tensors = {name: value for name, value in features.items() if self._torch.is_tensor(value)}
        mask = tensors.get("attention_mask")
        if mask is None or any(value.shape != mask.shape or value.is_floating_point() for value in tensors.values()):
            return False
        lengths = mask.sum(1)
        if not (mask.bool() == (self._torch.arange(mask.shape[1]) < lengths[:, None])).all():
            return False
        for name, value in tensors.items():
            padding = value[~mask.bool()]
            if len(padding) or name not in self._padding:
                self._padding[name] = int(padding[0]) if len(padding) else 0
        self._constant = {name: value for name, value in features.items() if name not in tensors}
        for row, (text, length) in enumerate(zip(texts, lengths.tolist(), strict=True)):
            self._cached[text] = {name: value[row, :length].int() for name, value in tensors.items()}
        return True


class _Student:
    """A float32 copy of a dual encoder in training."""

    def __init__(self, encoder: SentenceEncoder, settings: Distillation) -> None:
        self._torch = import_extra("torch", extra="models")
        self._checkpointed = import_extra("torch.utils.checkpoint", extra="models").checkpoint
        self._encoder = SentenceEncoder(
            encoder.folder,
            device=settings.device or "cpu",
            dtype="float32",
            normalize=encoder.normalize,
            query_prompt=encoder._prompts[QUERY],
            item_prompt=encoder._prompts[ITEM],
            max_tokens=encoder.max_tokens,
        )
        self._model = self._encoder._model
        given_prompts = {side: prompt for side, prompt in encoder._prompts.items() if prompt is not None}
        self._model.prompts = {**self._model.prompts, **given_prompts}
        self.device = self._model.device
        self._at_once = settings.texts_at_once or TEXTS_AT_ONCE[self.device.type]
        self.parameters = [value for value in self._model.parameters() if value.requires_grad]
        self._saved: list[Tensor] = []
        self._tokens = {side: TokenCache(partial(self._tokenize, side)) for side in (QUERY, ITEM)}

    def encode(self, side: str, texts: Sequence[str]) -> Tensor:
        """(texts, dim) float32 with gradients; of many texts activations are recomputed (gradient checkpointing)."""
        order = np.argsort([len(text) for text in texts], kind="stable")  # less padding
        parts = [
            self._features(side, [texts[at] for at in order[batch]]) for batch in batches(len(texts), self._at_once)
        ]
        if len(parts) == 1:
            vectors = self._forward(side, parts[0])
        else:
            options = {"use_reentrant": False, "preserve_rng_state": False}
            vectors = self._torch.cat([self._checkpointed(self._forward, side, part, **options) for part in parts])
        result: Tensor = vectors[self._torch.from_numpy(np.argsort(order)).to(self.device)]
        return result

    def check_vectors(self, texts: _Texts, entries: SparseScores) -> None:
        """Raise `EncoderError` unless the vectors in training are those that the encoder returns."""
        queries, items = texts.queries_of([entries]), texts.items.texts_of(entries.pairs.rows[:1])
        with self._torch.no_grad():
            own = self._torch.cat([self.encode(QUERY, queries), self.encode(ITEM, items)]).cpu().numpy()
        expected = np.concatenate([self._encoder.encode_queries(queries), self._encoder.encode_items(items)])
        errors = np.linalg.norm(own - expected, axis=1) / np.linalg.norm(expected, axis=1)
        if not errors.max() < MAX_RELATIVE_ERROR:
            raise EncoderError(
                f"{self._encoder.name} cannot be fine-tuned: sentence-transformers encodes texts with it in a way that "
                f"distillation does not support (vectors differ by {errors.max():.0%}). Upgrade sentence-transformers."
            )

    def checkpoint(self) -> None:
        """Save the weights in place of the previous checkpoint."""
        self._saved = [value.detach().clone() for value in self.parameters]

    def restore(self) -> None:
        """Return to the checkpoint."""
        with self._torch.no_grad():
            for value, saved in zip(self.parameters, self._saved, strict=True):
                value.copy_(saved)

    def save(self, folder: Path) -> None:
        """Write the model to `folder` atomically."""
        write_error = import_extra("safetensors", extra="models").SafetensorError
        fresh = unfinished(folder)
        try:
            with no_progress_bars():
                self._model.save_pretrained(str(fresh), create_model_card=False)
            for path in fresh.rglob("*"):
                sync(path)
            fresh.rename(folder)
        except (OSError, write_error) as error:
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

    def _forward(self, side: str, features: Features) -> Tensor:
        """(texts, dim) float32: what the encoder returns, with gradients."""
        half = self._torch.autocast("cuda", self._torch.bfloat16, enabled=self.device.type == "cuda")
        with half, attention_of_any_shape(self.device):
            found = self._model(dict(features), **self._task(side))  # a copy: the model adds its outputs to it
        vectors: Tensor = found["sentence_embedding"][:, : self._model.truncate_dim].float()
        return self._torch.nn.functional.normalize(vectors) if self._encoder.normalize else vectors

    def _task(self, side: str) -> dict[str, str]:
        return {"task": side} if hasattr(self._model, "encode_query") else {}  # sentence-transformers 5 and later

    def _features(self, side: str, texts: list[str]) -> Features:
        features = self._tokens[side].features(texts)
        return {name: v.to(self.device) if self._torch.is_tensor(v) else v for name, v in features.items()}


class _Trainer:
    """The epochs of one distillation."""

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
        self._done = 0  # lists trained on, over all epochs

    def train(self, fitted: _ScoredLists, held_out: _ScoredLists) -> DistillReport:
        """Train with early stopping and a time limit, and leave the best weights in the student."""
        settings, total = self._settings, self._settings.epochs * len(fitted)
        if settings.temperature is None:
            self._temperature = self._measure_temperature(fitted)
        checks = self._draw(held_out, range(len(held_out)))
        errors, train_errors = self._mean_error(checks, epoch=0), list[float]()
        early_stopping = bool(errors) and settings.patience is not None
        patience = settings.patience or settings.epochs
        best = epoch = 0
        while epoch < settings.epochs and epoch - best < patience and not self._is_out_of_time():
            if early_stopping and best == epoch:
                self._student.checkpoint()
            epoch += 1
            train_errors.append(self._run_epoch(fitted, epoch, total))
            errors += self._mean_error(checks, epoch=epoch)
            if not early_stopping or errors[epoch] < errors[best]:
                best = epoch
        if best < epoch:
            self._student.restore()
        if self._progress is not None and self._done < total:
            self._progress(PROGRESS_STEP, total, total)
        out_of_time = self._done < total and self._is_out_of_time()
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

    def _run_epoch(self, fitted: _ScoredLists, epoch: int, total: int) -> float:
        """The mean error during the epoch, which ends early when time is up."""
        errors: list[float] = []
        for chosen in shuffled_batches(len(fitted), self._settings.batch, self._rng):
            lists = self._draw(fitted, chosen)
            found = self._errors(lists)
            errors += found.tolist()
            _check_finite(errors, epoch)
            self._optimizer.zero_grad()
            self._torch.autograd.backward(found.mean())
            self._optimizer.step()
            self._done += len(chosen)
            if self._progress is not None:
                self._progress(PROGRESS_STEP, self._done, total)
            if self._is_out_of_time():
                break
        self._mean_error(lists[:1], epoch=epoch)  # the last step may have diverged, too
        return float(np.mean(errors))

    def _draw(self, lists: _ScoredLists, numbers: Iterable[int]) -> list[SparseScores]:
        return [lists.draw(number, self._settings.items_per_query, self._rng) for number in numbers]

    def _errors(self, lists: Sequence[SparseScores]) -> Tensor:
        """(lists,) soft cross-entropy between the softmax of a list's scores and that of its inner products."""
        cross_entropy = self._torch.nn.functional.cross_entropy
        scores = [self._torch.from_numpy(one.scores).to(self._student.device) for one in lists]
        products = self._products(lists)
        errors = [cross_entropy(p / self._temperature, s.softmax(0)) for p, s in zip(products, scores, strict=True)]
        return self._torch.stack(errors)  # type: ignore[no-any-return]

    def _products(self, lists: Sequence[SparseScores]) -> list[Tensor]:
        """The inner products of each list's query with its items; an item in several lists is encoded once."""
        rows, positions = np.unique(np.concatenate([one.pairs.rows for one in lists]), return_inverse=True)
        items = self._student.encode(ITEM, self._texts.items.texts_of(rows))
        queries = self._student.encode(QUERY, self._texts.queries_of(lists))
        each = items[self._torch.from_numpy(positions).to(items.device)]
        parts = self._torch.split(each, [len(one) for one in lists])
        return [part @ query for part, query in zip(parts, queries, strict=True)]

    def _mean_error(self, lists: list[SparseScores], *, epoch: int) -> list[float]:
        """The mean error on these lists; empty if there are none."""
        errors: list[float] = []
        with self._torch.no_grad():
            for batch in batches(len(lists), self._settings.batch):
                errors += self._errors(lists[batch]).tolist()
        _check_finite(errors, epoch)
        return [float(np.mean(errors))] if errors else []

    def _measure_temperature(self, fitted: _ScoredLists) -> float:
        """The paper's β, which scales scores to inner products, for deviations from the mean of each list."""
        scores, products = [], []
        with self._torch.no_grad():
            for number in self._rng.permutation(len(fitted))[:TEMPERATURE_QUERIES]:
                [one] = self._draw(fitted, [number])
                [found] = self._products([one])
                scores.append(one.scores - one.scores.mean())
                products.append((found - found.mean()).cpu().numpy())
        return Normalization.fit(np.concatenate(scores), np.concatenate(products)).beta

    def _is_out_of_time(self) -> bool:
        return self._settings.time_limit is not None and self._seconds() > self._settings.time_limit

    def _seconds(self) -> float:
        return time.perf_counter() - self._start


def _drop_single_items(entries: SparseScores) -> SparseScores:
    """The entries of queries that have at least two."""
    counts = np.bincount(entries.pairs.queries, minlength=entries.pairs.n_queries)
    kept = entries.take(counts[entries.pairs.queries] >= 2)
    if not len(kept):
        raise InputError(f"`entries` must hold two scored items of some query, got {len(entries)} entries.")
    return kept


def _check_new_folder(folder: Path) -> Path:
    """The folder, which must not exist; its parents are created."""
    if folder.exists():
        raise InputError(f"{folder} exists already. Give a new folder for the fine-tuned model.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror or error}).") from error
    return folder


def _entropy(scores: NDArray[np.float32]) -> float:
    """Of the softmax of a list's scores."""
    shifted = scores.astype(np.float64) - scores.max()
    weights = np.exp(shifted)
    return float(np.log(weights.sum()) - (weights * shifted).sum() / weights.sum())


def _check_finite(errors: list[float], epoch: int) -> None:
    if not math.isfinite(sum(errors)):
        raise InputError(
            f"The fit diverged in epoch {epoch}: NaN or infinity in the error. Lower `learning_rate`, or raise "
            "`temperature` if it is far below 0.01."
        )
