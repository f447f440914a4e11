"""Training of the paper's two models on one source set, to be evaluated on other sets.

    python -m tools.train_source SOURCE --base FOLDER --out DIR --pool 100000 --without dpdk-

SOURCE is a BEIR folder with train queries, the base a folder of all-MiniLM-L6-v2, with which both models begin:

1. DIR/de, the dual encoder (DE_src of the paper): cross-entropy of each query's relevant item over those of all queries
   in the batch. `SentenceEncoder` opens it.
2. DIR/emb-ce, the [emb]-CE: cross-entropy of the relevant item over a list with 15 others, a few at random and most
   from what the dual encoder finds near. `EmbCrossEncoder` opens it; give it the `max_query_tokens` and
   `max_item_tokens` it was trained with.

DIR/training.json has data, seed, settings, losses, seconds, and the quality on held-out queries of the source.
On a GPU all is computed in bfloat16; on a CPU the same seed gives the same weights.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor

from crossknn._checks import check_positive, check_seed
from crossknn.errors import CrossKnnError, InputError
from crossknn.scorers.inference.loading import Pretrained
from tools.pairs import Pairs, Tokens, in_chunks, score
from tools.source_lists import RANDOM_NEGATIVES, Relevance, draw_negatives, draw_positives, nearest
from tools.source_models import DualEncoder, EmbModel, load_base, save_dual_encoder, save_emb_model, write_json
from tools.source_set import Query, SourceSet, read_source

SPECIAL = 2, 3  # special tokens of a single text and of a pair
TEMPERATURE = 0.05  # of the dual encoder's cosines
NEAREST = 64  # nearest items by the dual encoder: hard negatives, and candidates to rerank
PAIR_BATCH = 512  # pairs per forward pass, of similar length
COUNTS = ("held_out", "query_tokens", "item_tokens", "epochs_de", "epochs_ce", "batch_de", "batch_ce")


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    try:
        check_options(options)
        run(options)
    except CrossKnnError as error:
        sys.exit(f"train_source: {error}")


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--base", type=Path, required=True, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--out", type=Path, required=True, help="a new or empty folder")
    parser.add_argument("--without", action="append", default=[], metavar="PREFIX", help="prefix of ids to leave out")
    parser.add_argument("--limit", type=int, help="maximum number of train queries, drawn at random")
    parser.add_argument("--pool", type=int, help="random items besides the relevant ones; default: all")
    parser.add_argument("--held-out", type=int, default=300, help="queries for the evaluation")
    parser.add_argument("--query-tokens", type=int, default=64, help="maximum length of a query for the cross-encoder")
    parser.add_argument("--item-tokens", type=int, default=160, help="maximum length of an item")
    parser.add_argument("--epochs-de", type=int, default=3)
    parser.add_argument("--epochs-ce", type=int, default=2)
    parser.add_argument("--batch-de", type=int, default=256, help="queries per step")
    parser.add_argument("--batch-ce", type=int, default=64, help="lists per step")
    parser.add_argument("--list-size", type=int, default=16)
    parser.add_argument("--rate-de", type=float, default=5e-5)
    parser.add_argument("--rate-ce", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cuda", "cpu"])
    return parser.parse_args(arguments)


def check_options(options: argparse.Namespace) -> None:
    check_seed(options.seed)
    for name in COUNTS + tuple(name for name in ("limit", "pool") if getattr(options, name) is not None):
        check_positive(f"--{name.replace('_', '-')}", getattr(options, name))
    if options.list_size < RANDOM_NEGATIVES + 2:
        raise InputError(f"--list-size must be at least {RANDOM_NEGATIVES + 2}, got {options.list_size}.")
    for name, rate in (("--rate-de", options.rate_de), ("--rate-ce", options.rate_ce)):
        if not 0 < rate < 1:
            raise InputError(f"{name} must be between 0 and 1, got {rate}.")
    if not options.base.is_dir():
        raise InputError(f"--base must be the folder of a model, got {options.base}.")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda needs a GPU that torch can use. Use --device cpu.")
    prepare_folder(options.out)


def prepare_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        full = any(folder.iterdir())
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror or error}).") from error
    if full:
        raise InputError(f"--out must be a new or an empty folder, got {folder} with files in it.")


@dataclass(frozen=True)
class Task:
    """Training data on the device; train queries come first."""

    options: argparse.Namespace
    source: SourceSet
    relevance: Relevance
    texts: Pairs  # truncated for the dual encoder
    pairs: Pairs  # truncated for the cross-encoder
    train: Tensor  # query numbers
    held_out: Tensor
    rows: Tensor  # all item numbers


def run(options: argparse.Namespace) -> None:
    torch.manual_seed(options.seed)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans again for every shape, which costs more than it saves
    seconds: dict[str, float] = {}
    dual, emb = (load_base(options.base, device=options.device) for _ in range(2))
    with timed(seconds, "read"):
        task = read_task(dual, options)
    encoder, model = DualEncoder(dual), EmbModel(emb)
    with timed(seconds, "measure base"):
        quality = {"base": measure(find(encoder, encode_items(encoder, task), task), task.source.held_out)}
    with timed(seconds, "train de"):
        losses = {"de": train_dual_encoder(encoder, task)}
        save_dual_encoder(dual, options.out / "de", max_tokens=task.texts.items.ids.shape[1] + SPECIAL[0])
    with timed(seconds, "mine_hard_negatives"):
        items = encode_items(encoder, task)
        near, found = mine_hard_negatives(encoder, items, task), find(encoder, items, task)
        quality["de"] = measure(found, task.source.held_out)
    with timed(seconds, "train emb-ce"):
        losses["emb-ce"] = train_emb_model(model, near, task)
        save_emb_model(emb, options.out / "emb-ce")
    with timed(seconds, "rerank"):
        quality["emb-ce"] = measure(rerank(model, found, task), task.source.held_out)
    report = {**describe(task), "loss_by_epoch": losses, "seconds": seconds, "held_out": quality}
    write_json(options.out / "training.json", report)
    print("held out", quality, "seconds", seconds, flush=True)


@contextmanager
def timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[step] = round(time.perf_counter() - began, 1)


def read_task(base: Pretrained, options: argparse.Namespace) -> Task:
    check_lengths(base, options)
    source = read_source(
        options.source,
        without=options.without,
        held_out=options.held_out,
        limit=options.limit,
        pool=options.pool,
        seed=options.seed,
    )
    relevance = Relevance(source.queries, source.items, device=options.device)
    if relevance.max_relevant() == len(source.items):
        raise InputError(f"{options.source}: all items are relevant to one query. Give a larger --pool.")
    max_length = max(options.query_tokens, options.item_tokens)  # sentence-transformers has one limit for both
    queries = Tokens.of(
        base.backend, [query.text for query in source.queries], max_length=max_length, device=options.device
    )
    items = Tokens.of(base.backend, source.items, max_length=max_length, device=options.device)
    special = base.tokenizer.cls_token_id, base.tokenizer.sep_token_id
    numbers = torch.arange(len(source.queries), device=options.device)
    return Task(
        options,
        source,
        relevance,
        texts=Pairs(queries, items, *special),
        pairs=Pairs(queries.truncate(options.query_tokens), items.truncate(options.item_tokens), *special),
        train=numbers[: len(source.train)],
        held_out=numbers[len(source.train) :],
        rows=torch.arange(len(source.items), device=options.device),
    )


def check_lengths(base: Pretrained, options: argparse.Namespace) -> None:
    longest = base.max_input_length()[0] // 8 * 8  # texts are padded to a multiple of 8
    wanted = options.query_tokens + options.item_tokens + SPECIAL[1]
    if wanted > longest:
        raise InputError(
            f"--query-tokens and --item-tokens, with {SPECIAL[1]} special tokens, must be at most {longest} together, "
            f"the longest input of {options.base}, got {wanted}."
        )


def train_dual_encoder(encoder: DualEncoder, task: Task) -> list[float]:
    """The mean loss of each epoch."""
    options, rng = task.options, random.Random(task.options.seed)

    def losses() -> Iterator[Tensor]:
        positives = draw_positives(task.source.train, rng, device=options.device)
        for q in shuffled(task.train, options.batch_de):
            i = positives[q]
            queries, items = read(encoder, task, task.texts.queries, q), read(encoder, task, task.texts.items, i)
            yield contrastive_loss(queries, items, task.relevance.holds(q[:, None], i))

    steps = -(-len(task.train) // options.batch_de)
    return train("de", encoder, losses, epochs=options.epochs_de, steps=steps, rate=options.rate_de)


def contrastive_loss(queries: Tensor, items: Tensor, relevant: Tensor) -> Tensor:
    """Cross-entropy over the items of the batch (in-batch negatives), other relevant items masked out."""
    own = torch.arange(len(queries), device=queries.device)
    others = relevant & (own[:, None] != own)
    return functional.cross_entropy((queries @ items.T / TEMPERATURE).masked_fill(others, -torch.inf), own)


def train_emb_model(model: EmbModel, near: Tensor, task: Task) -> list[float]:
    """The mean loss of each epoch."""
    options, rng = task.options, random.Random(task.options.seed)

    def losses() -> Iterator[Tensor]:
        positives = draw_positives(task.source.train, rng, device=options.device)[:, None]
        negatives = draw_negatives(near, options.list_size - 1, len(task.rows), task.relevance)
        lists = torch.cat([positives, negatives], 1)
        for q in shuffled(task.train, options.batch_ce):
            i = lists[q]
            chunks = -(-i.numel() // PAIR_BATCH)
            with half_precision(options.device):
                logits = task.pairs.logits(model, q.repeat_interleave(i.shape[1]), i.reshape(-1), chunks=chunks)
            yield functional.cross_entropy(logits.view_as(i), torch.zeros_like(q))

    steps = -(-len(task.train) // options.batch_ce)
    return train("emb-ce", model, losses, epochs=options.epochs_ce, steps=steps, rate=options.rate_ce)


def train(
    name: str,
    model: torch.nn.Module,
    losses: Callable[[], Iterator[Tensor]],
    *,
    epochs: int,
    steps: int,
    rate: float,
) -> list[float]:
    """Minimize the losses by AdamW with linear warm-up over a tenth of the steps and linear decay to 0."""
    total, rise = epochs * steps, max(1, epochs * steps // 10)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, rate, weight_decay=0.01, fused=parameters[0].is_cuda)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / rise, (total - step) / max(1, total - rise))
    )
    means = []
    for epoch in range(epochs):
        model.train()
        summed = torch.zeros((), device=parameters[0].device)
        for loss in losses():
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            summed += loss.detach()
        means.append(round(float(summed) / steps, 4))
        print(name, "epoch", epoch + 1, "loss", means[-1], flush=True)
        if not math.isfinite(means[-1]):
            raise InputError(f"{name}: the loss is {means[-1]} in epoch {epoch + 1}. Use a lower learning rate.")
    return means


def shuffled(numbers: Tensor, size: int) -> Sequence[Tensor]:
    """Batches of these numbers in random order."""
    return numbers[torch.randperm(len(numbers)).to(numbers.device)].split(size)


def half_precision(device: str) -> torch.autocast:
    return torch.autocast("cuda", torch.bfloat16, enabled=device == "cuda")


def read(encoder: DualEncoder, task: Task, tokens: Tokens, rows: Tensor) -> Tensor:
    """(rows, dim) the vectors of some texts."""
    with half_precision(task.options.device):
        vectors: Tensor = encoder(**task.texts.assemble_one(tokens, rows))
    return vectors


@torch.no_grad()
def encode(encoder: DualEncoder, task: Task, tokens: Tokens, rows: Tensor) -> Tensor:
    """The vectors of many texts without gradients."""
    encoder.eval()
    return in_chunks(lambda chunk: read(encoder, task, tokens, rows[chunk]), tokens.lengths[rows], chunks=8)


def encode_items(encoder: DualEncoder, task: Task) -> Tensor:
    return encode(encoder, task, task.texts.items, task.rows)


def mine_hard_negatives(encoder: DualEncoder, items: Tensor, task: Task) -> Tensor:
    """(train queries, at most 64) the nearest irrelevant items."""
    queries = encode(encoder, task, task.texts.queries, task.train)
    count = min(NEAREST, len(items) - task.relevance.max_relevant())
    return nearest(queries, items, count, exclude=task.relevance)


def find(encoder: DualEncoder, items: Tensor, task: Task) -> Tensor:
    """(held-out queries, at most 64) the nearest of all items, best first."""
    queries = encode(encoder, task, task.texts.queries, task.held_out)
    return nearest(queries, items, min(NEAREST, len(items)))


def rerank(model: EmbModel, found: Tensor, task: Task) -> Tensor:
    """The same items in the order of the cross-encoder's scores."""
    q = task.held_out.repeat_interleave(found.shape[1])
    scores = score(model, task.pairs, q, found.reshape(-1)).view_as(found)
    return found.gather(1, scores.argsort(1, descending=True))


def measure(found: Tensor, queries: Sequence[Query]) -> dict[str, float]:
    """Mean quality of the rankings over queries."""
    hits = np.array([np.isin(rows, query.rows) for rows, query in zip(found.tolist(), queries, strict=True)])
    gains = 1 / np.log2(np.arange(2, 12))
    ideal = np.array([gains[: len(query.rows)].sum() for query in queries])
    relevant = np.array([len(query.rows) for query in queries])
    return {
        "accuracy": round(float(hits[:, 0].mean()), 4),
        "ndcg_at_10": round(float(((hits[:, :10] @ gains[: hits.shape[1]]) / ideal).mean()), 4),
        f"recall_at_{NEAREST}": round(float((hits.sum(1) / relevant).mean()), 4),
    }


def describe(task: Task) -> dict[str, Any]:
    """The data and settings of the training."""
    settings = {name: value for name, value in vars(task.options).items() if name not in ("source", "base", "out")}
    return {
        "source": task.source.name,
        "items": len(task.source.items),
        "train_queries": len(task.source.train),
        "held_out_queries": len(task.source.held_out),
        "skipped": dict(task.source.skipped),
        "base": task.options.base.resolve().name,
        "settings": settings,
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
