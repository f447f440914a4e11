"""Trains the embedded example's cross-encoder from all-MiniLM-L6-v2, on WordNet only.

    python -m tools.train_example near --base FOLDER --work DIR
    python -m tools.train_example fit --base FOLDER --work DIR --name teacher --teach
    python -m tools.train_example fit --base FOLDER --work DIR --name small --teacher DIR/teacher --layers 0,3

`near` encodes everything and finds the dual encoder's nearest senses of every training query. `fit` trains one
model. Without a teacher by cross-entropy over each query's list: its sense, other senses of the word, neighbours, some
at random; for a phrase, half of the target is the dual encoder's own softmax over the list. With a teacher mostly by
agreeing with the teacher's softmax over the list. Every model writes `<name>.json`: data, seed, settings, time, and
its accuracy and nDCG@10 by exact search on held-out queries. GPU recommended.
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
    draw_taught,
    phrases,
    read_corpus,
    rows_held_out,
    sentences,
    words,
)

NEIGHBOURS = 64
QUERY_TOKENS, ITEM_TOKENS = 40, 48  # the longest texts lose their ends while training
POSITIONS = 256
WORDS, DEFINITIONS = 8_000, 60_000  # queries made of single words and of shortened definitions
HARD = 24  # negatives kept per query after mining
TEMPERATURE = 2.0
ALIKE = 0.05  # temperature of the dual encoder's similarities
LESSON = 131_072  # pairs that a teacher scores at once


def main() -> None:
    options = read_options()
    random.seed(options.seed)
    torch.manual_seed(options.seed)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape, which costs more than it saves
    data = Data(options)
    find_neighbours(data, options) if options.step == "near" else fit(data, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["near", "fit"])
    parser.add_argument("--base", type=Path, required=True, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--name", default="model")
    parser.add_argument("--teacher", type=Path)
    parser.add_argument("--teach", action="store_true", help="write scores for pupils")
    parser.add_argument("--layers", default="0,1,2,3,4,5", help="of the model begun with")
    parser.add_argument("--width", type=int, default=1536, help="of the feed-forward parts")
    parser.add_argument("--vocabulary", type=int, default=7168)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lists", type=int, default=256, help="in a step")
    parser.add_argument("--list-size", type=int, default=16)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--senses", type=int, default=13_000, help="searched exactly for the evaluation")
    parser.add_argument("--queries", type=int, default=200, help="held-out queries of the evaluation")
    parser.add_argument("--limit", type=int, help="training queries, for a trial")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


class Data:
    """The corpus and the training queries; the same for the same seed."""

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
        self.encoder: dict[str, Tensor] = {}  # what `near` found
        self.train: list[TrainingQuery] = [query for found in kinds.values() for query in found]
        if options.limit:
            rng.shuffle(self.train)
            self.train = self.train[: options.limit]


def find_neighbours(data: Data, options: argparse.Namespace) -> None:
    encoder = SentenceEncoder(options.base, device=options.device)
    items = torch.tensor(encoder.encode_items(data.corpus.texts), device=options.device)
    queries = torch.tensor(encoder.encode_queries([query.text for query in data.train]), device=options.device)
    senses = items[: data.corpus.senses].T
    near = torch.cat([(part @ senses).topk(NEIGHBOURS).indices.int() for part in queries.split(1024)])
    options.work.mkdir(parents=True, exist_ok=True)
    torch.save({"near": near, "queries": queries.half(), "items": items.half()}, options.work / "encoder.pt")


def fit(data: Data, options: argparse.Namespace) -> None:
    began = time.time()
    data.encoder = torch.load(options.work / "encoder.pt", map_location=options.device)
    for query, rows in zip(data.train, data.encoder["near"].tolist(), strict=True):
        query.neighbours = [row for row in rows if row not in query.gold]
    tokenizer, model = begin(data, options)
    queries = [query.text for query in chain(data.train, *data.tests.values())]
    pairs = tokenise(tokenizer, queries, data.corpus.texts, options)
    if options.teacher is not None:
        read_lessons(data, options.teacher)
    if options.width < model.config.intermediate_size:
        some = torch.randint(len(data.train), (512,), device=options.device)
        first = torch.tensor([shown(data, q, data.train[q].positives)[0] for q in some.tolist()], device=options.device)
        prune.narrow_feed_forward(model, options.width, pairs.assemble(some, first))
    losses = []
    for loss in train(model, data, pairs, options):
        losses.append(loss)
        print(options.name, "epoch", len(losses), "loss", loss, f"{time.time() - began:.0f} s", flush=True)
        save(model, tokenizer, options.work / options.name)
    trained = time.time() - began
    if options.teach:
        write_lessons(model, data, pairs, options)
    result = evaluate(model, data, pairs, options)
    result |= {"loss_by_epoch": losses, "train_seconds": round(trained, 1), "train_queries": data.counts}
    result |= {"parameters": sum(p.numel() for p in model.parameters()), "settings": settings_of(options)}
    (options.work / f"{options.name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(options.name, json.dumps(result), flush=True)


def write_lessons(model: Any, data: Data, pairs: Pairs, options: argparse.Namespace) -> None:
    """The teacher's scores of every query's pool, for its pupils."""
    rng = random.Random(options.seed)
    pools = [draw_pool(query, data.corpus.senses, rng) for query in data.train]
    counts = np.array([len(pool) for pool in pools])
    q = torch.tensor(np.repeat(np.arange(len(pools)), counts), device=options.device)
    rows = [row for q, pool in enumerate(pools) for row in shown(data, q, pool)]
    i = torch.tensor(rows, device=options.device)
    scores = [score(model, pairs, some, rows) for some, rows in zip(q.split(LESSON), i.split(LESSON), strict=True)]
    folder = options.work / options.name
    np.savez(folder / "lessons.npz", rows=np.concatenate(pools), scores=torch.cat(scores).cpu().numpy(), counts=counts)


def shown(data: Data, query: int, rows: list[int]) -> list[int]:
    """Where the texts of these senses are in the form that this training query is asked with."""
    return [data.train[query].form * data.corpus.senses + row for row in rows]


def read_lessons(data: Data, teacher: Path) -> None:
    lessons = np.load(teacher / "lessons.npz")
    ends = np.cumsum(lessons["counts"])[:-1]
    for query, rows, scores in zip(
        data.train, np.split(lessons["rows"], ends), np.split(lessons["scores"], ends), strict=True
    ):
        query.taught = dict(zip(rows.tolist(), scores.tolist(), strict=True))


def begin(data: Data, options: argparse.Namespace) -> tuple[Tokenizer, Any]:
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
    dropout = 0.1 if options.teacher is None else 0.0  # a pupil has more to copy than it can hold
    model = transformers.BertForSequenceClassification.from_pretrained(
        folder, num_labels=1, dtype=torch.float32, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )
    return model.to(options.device)


def tokenise(tokenizer: Tokenizer, queries: list[str], items: list[str], options: argparse.Namespace) -> Pairs:
    return Pairs(
        Tokens.of(tokenizer, queries, most=QUERY_TOKENS, device=options.device),
        Tokens.of(tokenizer, items, most=ITEM_TOKENS, device=options.device),
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
            mine(model, data, pairs, options)
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
        drawn = [draw_taught(query, options.list_size, rng) for query in queries]
    i = torch.tensor([shown(data, q, rows) for q, (rows, _) in zip(chosen, drawn, strict=True)], device=options.device)
    q = torch.tensor(chosen, device=options.device)[:, None].expand_as(i)
    answers = torch.tensor([count for _, count in drawn], device=options.device)[:, None]
    right = (torch.arange(options.list_size, device=options.device)[None] < answers).float() / answers
    with torch.autocast("cuda", torch.bfloat16, enabled=i.is_cuda):
        logits = pairs.logits(model, q.reshape(-1), i.reshape(-1), chunks=2).view_as(i)
    if options.teacher is None:
        return functional.cross_entropy(logits, soften(right, queries, q, i, data))
    taught = torch.tensor(
        [[query.taught[row] for row in rows] for query, (rows, _) in zip(queries, drawn, strict=True)],
        device=options.device,
    )
    return 0.2 * functional.cross_entropy(logits, right) + disagreement(logits, taught)


def soften(right: Tensor, queries: list[TrainingQuery], q: Tensor, i: Tensor, data: Data) -> Tensor:
    """For a phrase, half of the answer is what the dual encoder finds near: a list may hold other good answers."""
    alike = (data.encoder["queries"][q] * data.encoder["items"][i]).float().sum(-1)
    described = torch.tensor([query.described for query in queries], device=right.device)[:, None]
    return torch.where(described, 0.5 * right + 0.5 * (alike / ALIKE).softmax(1), right)


def disagreement(logits: Tensor, taught: Tensor) -> Tensor:
    """How far a pupil's softmax over a list is from its teacher's, and its scores from the teacher's spacing."""
    agree = functional.kl_div(
        functional.log_softmax(logits / TEMPERATURE, 1),
        functional.log_softmax(taught / TEMPERATURE, 1),
        log_target=True,
        reduction="batchmean",
    )
    spacing = functional.mse_loss(logits - logits.mean(1, keepdim=True), taught - taught.mean(1, keepdim=True))
    return TEMPERATURE**2 * agree + 0.05 * spacing


def mine(model: Any, data: Data, pairs: Pairs, options: argparse.Namespace) -> None:
    """Keep of a sentence's neighbours those that the model finds hardest to tell from the answer, and a few others."""
    sentences = [q for q, query in enumerate(data.train) if not query.described]
    for start in range(0, len(sentences), 2048):
        chosen = sentences[start : start + 2048]
        counts = [len(data.train[q].neighbours) for q in chosen]
        rows = [row for q in chosen for row in shown(data, q, data.train[q].neighbours)]
        i = torch.tensor(rows, device=options.device)
        q = torch.tensor(chosen, device=options.device).repeat_interleave(torch.tensor(counts, device=options.device))
        scores = score(model, pairs, q, i).cpu()
        for query, part in zip(chosen, scores.split(counts), strict=True):
            near = data.train[query].neighbours
            order = part.argsort(descending=True).tolist()
            data.train[query].neighbours = [near[at] for at in [*order[:HARD], *order[HARD::4]]]


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
        began = time.time()
        ranks = ranks_in_exact_search(model, pairs, q, gold, rows).numpy()
        speed = round(len(chosen) * options.senses / (time.time() - began))
        found[kind] = {"test_queries": len(chosen), **measure(ranks), "pairs_per_second": speed}
        before += len(tests)
    return found


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    names = ("layers", "width", "vocabulary", "epochs", "lists", "list_size", "rate", "limit", "seed", "device")
    teacher = None if options.teacher is None else options.teacher.name
    return {**{name: getattr(options, name) for name in names}, "teacher": teacher, "torch": torch.__version__}


if __name__ == "__main__":
    main()
