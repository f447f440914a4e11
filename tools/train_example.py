"""Training of the embedded example's cross-encoder from all-MiniLM-L6-v2, on WordNet only.

    python -m tools.train_example neighbors --base FOLDER --work DIR
    python -m tools.train_example fit --base FOLDER --work DIR --name teacher --teach
    python -m tools.train_example fit --base FOLDER --work DIR --name small --teacher DIR/teacher --layers 0,3

`neighbors` finds the nearest senses of every training query by the dual encoder. `fit` trains one model: without a
teacher by cross-entropy over each query's list (its sense, other senses of the word, neighbors, random senses; for a
phrase, half of the target is the dual encoder's softmax over the list), with a teacher mostly by distillation of the
teacher's softmax over the list. `<name>.json` gets data, seed, settings, time, accuracy and nDCG@10 of exact search on
held-out queries. A GPU is recommended.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
import transformers
from tokenizers import Tokenizer
from torch import Tensor

from benchmarks.example_model import measure
from crossknn.encoders.sentence import SentenceEncoder
from tools import prune
from tools.pairs import Pairs, Tokens, ranks_in_exact_search, score
from tools.training_lists import (
    Corpus,
    TrainingQuery,
    definitions,
    draw_list,
    draw_pool,
    draw_teacher_list,
    phrases,
    read_corpus,
    rows_held_out,
    sentences,
    words,
)

NEIGHBORS = 64
QUERY_TOKENS, ITEM_TOKENS = 40, 48  # maximum lengths in training
POSITIONS = 256
WORDS, DEFINITIONS = 8_000, 60_000  # queries from single words and from shortened definitions
HARD_NEGATIVES = 24  # per query, after mining
TEMPERATURE = 2.0
SIMILARITY_TEMPERATURE = 0.05  # of the dual encoder's softmax
TEACHER_BATCH = 131_072  # pairs


def main() -> None:
    options = read_options()
    random.seed(options.seed)
    torch.manual_seed(options.seed)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans again for every shape, which costs more than it saves
    data = Data(options)
    find_neighbors(data, options) if options.step == "neighbors" else fit(data, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["neighbors", "fit"])
    parser.add_argument("--base", type=Path, required=True, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--name", default="model")
    parser.add_argument("--teacher", type=Path)
    parser.add_argument("--teach", action="store_true", help="write scores for distillation")
    parser.add_argument("--layers", default="0,1,2,3,4,5", help="layers of the initial model to keep")
    parser.add_argument("--width", type=int, default=1536, help="width of the feed-forward layers")
    parser.add_argument("--vocabulary", type=int, default=7168)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lists", type=int, default=256, help="lists per step")
    parser.add_argument("--list-size", type=int, default=16)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--senses", type=int, default=13_000, help="senses of the evaluation's exact search")
    parser.add_argument("--queries", type=int, default=200, help="held-out queries for the evaluation")
    parser.add_argument("--limit", type=int, help="maximum number of training queries, for a trial run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


class Data:
    """The corpus and the training queries, determined by the seed."""

    def __init__(self, options: argparse.Namespace) -> None:
        rng = random.Random(options.seed)
        self.corpus: Corpus = read_corpus()
        held_out = rows_held_out(self.corpus)
        others = [row for row in range(self.corpus.senses) if row not in held_out]
        self.tests = {
            "sentences": sentences(self.corpus, "test", rng),
            "phrases": phrases(self.corpus, sorted(held_out)),
        }
        kinds = {
            "sentences": sentences(self.corpus, "train", rng),
            "phrases": phrases(self.corpus, others),
            "definitions": definitions(self.corpus, rng.sample(others, DEFINITIONS), rng),
            "words": words(self.corpus, WORDS, held_out, rng),
        }
        self.counts = {kind: len(found) for kind, found in kinds.items()}
        self.encoder: dict[str, Tensor] = {}  # nearest senses and vectors, by step `neighbors`
        self.train: list[TrainingQuery] = [query for found in kinds.values() for query in found]
        if options.limit:
            rng.shuffle(self.train)
            self.train = self.train[: options.limit]


def find_neighbors(data: Data, options: argparse.Namespace) -> None:
    encoder = SentenceEncoder(options.base, device=options.device)
    items = torch.tensor(encoder.encode_items(data.corpus.texts), device=options.device)
    queries = torch.tensor(encoder.encode_queries([query.text for query in data.train]), device=options.device)
    senses = items[: data.corpus.senses].T
    near = torch.cat([(part @ senses).topk(NEIGHBORS).indices.int() for part in queries.split(1024)])
    options.work.mkdir(parents=True, exist_ok=True)
    torch.save({"near": near, "queries": queries.half(), "items": items.half()}, options.work / "encoder.pt")


def fit(data: Data, options: argparse.Namespace) -> None:
    began = time.monotonic()
    data.encoder = torch.load(options.work / "encoder.pt", map_location=options.device)
    for query, rows in zip(data.train, data.encoder["near"].tolist(), strict=True):
        query.neighbors = [row for row in rows if row not in query.gold]
    tokenizer, model = initial_model(data, options)
    queries = [query.text for query in chain(data.train, *data.tests.values())]
    pairs = tokenize(tokenizer, queries, data.corpus.texts, options)
    if options.teacher is not None:
        read_teacher_scores(data, options.teacher)
    if options.width < model.config.intermediate_size:
        some = torch.randint(len(data.train), (512,), device=options.device)
        first = torch.tensor(
            [item_rows(data, q, data.train[q].positives)[0] for q in some.tolist()], device=options.device
        )
        prune.narrow_feed_forward(model, options.width, pairs.assemble(some, first))
    losses = []
    for loss in train(model, data, pairs, options):
        losses.append(loss)
        print(options.name, "epoch", len(losses), "loss", loss, f"{time.monotonic() - began:.0f} s", flush=True)
        save(model, tokenizer, options.work / options.name)
    trained = time.monotonic() - began
    if options.teach:
        write_teacher_scores(model, data, pairs, options)
    result = evaluate(model, data, pairs, options)
    result |= {"loss_by_epoch": losses, "train_seconds": round(trained, 1), "train_queries": data.counts}
    result |= {"parameters": sum(p.numel() for p in model.parameters()), "settings": settings_of(options)}
    (options.work / f"{options.name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(options.name, json.dumps(result), flush=True)


def write_teacher_scores(model: Any, data: Data, pairs: Pairs, options: argparse.Namespace) -> None:
    """Save the teacher's scores of every query's pool, for distillation."""
    rng = random.Random(options.seed)
    pools = [draw_pool(query, data.corpus.senses, rng) for query in data.train]
    counts = np.array([len(pool) for pool in pools])
    q = torch.tensor(np.repeat(np.arange(len(pools)), counts), device=options.device)
    rows = [row for q, pool in enumerate(pools) for row in item_rows(data, q, pool)]
    i = torch.tensor(rows, device=options.device)
    scores = [
        score(model, pairs, some, rows)
        for some, rows in zip(q.split(TEACHER_BATCH), i.split(TEACHER_BATCH), strict=True)
    ]
    folder = options.work / options.name
    np.savez(
        folder / "teacher-scores.npz", rows=np.concatenate(pools), scores=torch.cat(scores).cpu().numpy(), counts=counts
    )


def item_rows(data: Data, query: int, rows: list[int]) -> list[int]:
    """Rows of these senses' texts in the form of this training query."""
    return [data.train[query].form * data.corpus.senses + row for row in rows]


def read_teacher_scores(data: Data, teacher: Path) -> None:
    saved = np.load(teacher / "teacher-scores.npz")
    ends = np.cumsum(saved["counts"])[:-1]
    for query, rows, scores in zip(
        data.train, np.split(saved["rows"], ends), np.split(saved["scores"], ends), strict=True
    ):
        query.teacher_scores = dict(zip(rows.tolist(), scores.tolist(), strict=True))


def initial_model(data: Data, options: argparse.Namespace) -> tuple[Tokenizer, Any]:
    """The model training begins with: the teacher's chosen layers, or the base model's, with a smaller vocabulary."""
    if options.teacher is not None:
        tokenizer = Tokenizer.from_file(str(options.teacher / "tokenizer.json"))
        model = load(options.teacher, options)
    else:
        tokenizer = Tokenizer.from_file(str(options.base / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        model = load(options.base, options)
        if options.vocabulary < tokenizer.get_vocab_size():
            texts = [*data.corpus.texts[: data.corpus.senses], *(query.text for query in data.train)]
            tokenizer, kept = prune.prune_vocabulary(tokenizer, texts, options.vocabulary)
            prune.keep_pieces(model, kept)
        prune.keep_positions(model, POSITIONS)
    prune.keep_layers(model, [int(layer) for layer in options.layers.split(",")])
    return tokenizer, model


def load(folder: Path, options: argparse.Namespace) -> Any:
    dropout = 0.1 if options.teacher is None else 0.0  # a student is smaller than what it learns from
    model = transformers.BertForSequenceClassification.from_pretrained(
        folder, num_labels=1, dtype=torch.float32, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )
    return model.to(options.device)


def tokenize(tokenizer: Tokenizer, queries: list[str], items: list[str], options: argparse.Namespace) -> Pairs:
    return Pairs(
        Tokens.of(tokenizer, queries, max_length=QUERY_TOKENS, device=options.device),
        Tokens.of(tokenizer, items, max_length=ITEM_TOKENS, device=options.device),
        cls=tokenizer.token_to_id("[CLS]"),
        sep=tokenizer.token_to_id("[SEP]"),
    )


def train(model: Any, data: Data, pairs: Pairs, options: argparse.Namespace) -> Iterator[float]:
    """Train; yields the mean loss of each epoch."""
    rng = random.Random(options.seed)
    steps = options.epochs * -(-len(data.train) // options.lists)
    optimizer = torch.optim.AdamW(model.parameters(), options.rate, weight_decay=0.01, fused=options.device == "cuda")
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.rate, total_steps=steps, pct_start=0.1, anneal_strategy="linear"
    )
    for epoch in range(options.epochs):
        if options.teacher is None and epoch == options.epochs // 2:
            mine_hard_negatives(model, data, pairs, options)
        model.train()
        order = rng.sample(range(len(data.train)), len(data.train))
        total = torch.zeros((), device=options.device)
        for start in range(0, len(order), options.lists):
            chosen = order[start : start + options.lists]
            loss = list_loss(model, chosen, data, pairs, rng, options)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.detach() * len(chosen)
        yield round(float(total) / len(order), 4)


def list_loss(
    model: Any, chosen: list[int], data: Data, pairs: Pairs, rng: random.Random, options: argparse.Namespace
) -> Tensor:
    queries = [data.train[q] for q in chosen]
    if options.teacher is None:
        drawn = [draw_list(query, data.corpus.senses, options.list_size, rng) for query in queries]
    else:
        drawn = [draw_teacher_list(query, options.list_size, rng) for query in queries]
    i = torch.tensor(
        [item_rows(data, q, rows) for q, (rows, _) in zip(chosen, drawn, strict=True)], device=options.device
    )
    q = torch.tensor(chosen, device=options.device)[:, None].expand_as(i)
    answers = torch.tensor([count for _, count in drawn], device=options.device)[:, None]
    right = (torch.arange(options.list_size, device=options.device)[None] < answers).float() / answers
    with torch.autocast("cuda", torch.bfloat16, enabled=i.is_cuda):
        logits = pairs.logits(model, q.reshape(-1), i.reshape(-1), chunks=2).view_as(i)
    if options.teacher is None:
        return functional.cross_entropy(logits, soften_targets(right, queries, q, i, data))
    teacher_scores = torch.tensor(
        [[query.teacher_scores[row] for row in rows] for query, (rows, _) in zip(queries, drawn, strict=True)],
        device=options.device,
    )
    return 0.2 * functional.cross_entropy(logits, right) + distillation_loss(logits, teacher_scores)


def soften_targets(right: Tensor, queries: list[TrainingQuery], q: Tensor, i: Tensor, data: Data) -> Tensor:
    """For a phrase, half of the target is the dual encoder's softmax: its list may hold other relevant senses."""
    similarity = (data.encoder["queries"][q] * data.encoder["items"][i]).float().sum(-1)
    described = torch.tensor([query.described for query in queries], device=right.device)[:, None]
    return torch.where(described, 0.5 * right + 0.5 * (similarity / SIMILARITY_TEMPERATURE).softmax(1), right)


def distillation_loss(logits: Tensor, teacher_scores: Tensor) -> Tensor:
    """KL divergence from the teacher's softmax over a list, plus the squared error of the centered scores."""
    agree = functional.kl_div(
        functional.log_softmax(logits / TEMPERATURE, 1),
        functional.log_softmax(teacher_scores / TEMPERATURE, 1),
        log_target=True,
        reduction="batchmean",
    )
    spacing = functional.mse_loss(
        logits - logits.mean(1, keepdim=True), teacher_scores - teacher_scores.mean(1, keepdim=True)
    )
    return TEMPERATURE**2 * agree + 0.05 * spacing


def mine_hard_negatives(model: Any, data: Data, pairs: Pairs, options: argparse.Namespace) -> None:
    """Keep the highest-scored neighbors of each sentence as hard negatives, and a quarter of the others."""
    sentences = [q for q, query in enumerate(data.train) if not query.described]
    for start in range(0, len(sentences), 2048):
        chosen = sentences[start : start + 2048]
        counts = [len(data.train[q].neighbors) for q in chosen]
        rows = [row for q in chosen for row in item_rows(data, q, data.train[q].neighbors)]
        i = torch.tensor(rows, device=options.device)
        q = torch.tensor(chosen, device=options.device).repeat_interleave(torch.tensor(counts, device=options.device))
        scores = score(model, pairs, q, i).cpu()
        for query, part in zip(chosen, scores.split(counts), strict=True):
            near = data.train[query].neighbors
            order = part.argsort(descending=True).tolist()
            data.train[query].neighbors = [near[at] for at in [*order[:HARD_NEGATIVES], *order[HARD_NEGATIVES::4]]]


def save(model: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """A folder that transformers loads: half-precision weights and a fast tokenizer."""
    copy.deepcopy(model).half().save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "BertTokenizerFast",
        "model_max_length": POSITIONS,
        "do_lower_case": True,
        **{f"{name.strip('[]').lower()}_token": name for name in prune.SPECIAL},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")


def evaluate(model: Any, data: Data, pairs: Pairs, options: argparse.Namespace) -> dict[str, Any]:
    """Accuracy and nDCG@10 of exact search among the first senses, for held-out sentences and phrases."""
    found: dict[str, Any] = {"senses": options.senses}
    before = len(data.train)
    for kind, tests in data.tests.items():
        inside = [at for at, query in enumerate(tests) if query.positives[0] < options.senses]
        chosen = random.Random(1).sample(inside, min(options.queries, len(inside)))
        q = torch.tensor([before + at for at in chosen], device=options.device)
        gold = torch.tensor([tests[at].positives[0] for at in chosen], device=options.device)
        rows = tests[0].form * data.corpus.senses + torch.arange(options.senses, device=options.device)
        began = time.monotonic()
        ranks = ranks_in_exact_search(model, pairs, q, gold, rows).numpy()
        speed = round(len(chosen) * options.senses / (time.monotonic() - began))
        found[kind] = {"test_queries": len(chosen), **measure(ranks), "pairs_per_second": speed}
        before += len(tests)
    return found


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    names = ("layers", "width", "vocabulary", "epochs", "lists", "list_size", "rate", "limit", "seed", "device")
    teacher = None if options.teacher is None else options.teacher.name
    return {**{name: getattr(options, name) for name in names}, "teacher": teacher, "torch": torch.__version__}


if __name__ == "__main__":
    main()
