"""The training of the paper's two models, on a tiny source with a tiny BERT."""

import json
import random

import numpy as np
import pytest
from safetensors.numpy import load_file

from crossknn.encoders.sentence import SentenceEncoder
from crossknn.errors import InputError
from crossknn.scorers.emb_cross_encoder import EmbCrossEncoder
from tests.scorers import tiny

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tools.pairs import score  # noqa: E402
from tools.source_lists import Relevance, draw_negatives, draw_positives, nearest  # noqa: E402
from tools.source_models import DualEncoder, EmbModel, load_base, save_dual_encoder, save_emb_model  # noqa: E402
from tools.source_set import Query, read_source  # noqa: E402
from tools.train_source import (  # noqa: E402
    check_options,
    contrastive_loss,
    encode,
    main,
    measure,
    read_options,
    read_task,
    rerank,
)

QUERIES, OTHERS = 60, 40
WORDS = [f"w{number}" for number in range(80)]
TINY = [
    *("--query-tokens", "5", "--item-tokens", "20", "--device", "cpu", "--epochs-de", "4", "--epochs-ce", "4"),
    *("--batch-de", "16", "--batch-ce", "8", "--rate-de", "0.003", "--rate-ce", "0.003"),
]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A BERT with random weights whose tokenizer knows the words."""
    folder = tmp_path_factory.mktemp("base")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    torch.manual_seed(4)
    config = transformers.BertConfig(
        vocab_size=len(pieces), max_position_embeddings=64, initializer_range=0.2, **size, **dropout
    )
    transformers.BertModel(config).save_pretrained(folder)
    vocab = {piece: number for number, piece in enumerate(pieces)}
    transformers.BertTokenizerFast(vocab=vocab, model_max_length=64).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_source(tmp_path_factory.mktemp("data") / "small")


@pytest.fixture(scope="module")
def trained(source, base, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained")
    main([str(source), "--base", str(base), "--out", str(out), *TINY])
    return out


def write_source(folder):
    """Each query is six words of its item; queries and some items are longer than is read, one item has no text."""
    rng = random.Random(0)
    texts = [" ".join(rng.sample(WORDS, 30 if row % 10 == 0 else 10)) for row in range(QUERIES + OTHERS - 1)] + [""]
    asked = [" ".join(rng.sample(text.split()[:10], 6)) for text in texts[:QUERIES]]
    write_lines(folder / "corpus.jsonl", [{"_id": name("i", n), "text": text} for n, text in enumerate(texts)])
    write_lines(folder / "queries.jsonl", [{"_id": name("q", n), "text": text} for n, text in enumerate(asked)])
    write_judgments(folder, [(n, n) for n in range(QUERIES)])
    return folder


def name(kind, number):
    """Every fourth id begins with "old-"."""
    return f"{'old-' if number % 4 == 3 else ''}{kind}{number}"


def write_lines(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_judgments(folder, pairs):
    lines = "".join(f"{name('q', q)}\t{name('i', i)}\t1\n" for q, i in pairs)
    (folder / "qrels").mkdir(exist_ok=True)
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)


def task_of(source, base, pretrained):
    return read_task(pretrained, read_options([str(source), "--base", str(base), "--out", "unused", *TINY]))


def choose(folder, **options):
    return read_source(folder, **{"held_out": 300, "limit": None, "pool": None, "seed": 0, **options})


def test_training_lowers_both_losses_and_says_what_was_done(trained):
    report = json.loads((trained / "training.json").read_text())
    for model in ("de", "emb-ce"):
        losses = report["loss_by_epoch"][model]
        assert len(losses) == 4
        assert losses[-1] < 0.9 * losses[0]
    assert (report["source"], report["items"], report["train_queries"], report["held_out_queries"]) == (
        "small",
        QUERIES + OTHERS,
        QUERIES - QUERIES // 5,
        QUERIES // 5,
    )
    assert set(report["held_out"]) == {"base", "de", "emb-ce"}
    assert report["held_out"]["de"]["ndcg_at_10"] > 0.2  # by chance 0.05
    assert report["settings"]["seed"] == 0
    assert "train emb-ce" in report["seconds"]


def test_sentence_encoder_gives_the_vectors_of_training(source, base, tmp_path):
    pretrained = load_base(base, device="cpu")
    task, encoder = task_of(source, base, pretrained), DualEncoder(pretrained)
    save_dual_encoder(pretrained, tmp_path / "de", max_tokens=22)
    opened = SentenceEncoder(tmp_path / "de", device="cpu")
    items = opened.encode_items(task.source.items)
    queries = opened.encode_queries([query.text for query in task.source.train])
    np.testing.assert_allclose(encode(encoder, task, task.texts.items, task.rows), items, atol=2e-3)
    np.testing.assert_allclose(encode(encoder, task, task.texts.queries, task.train), queries, atol=2e-3)


def test_emb_cross_encoder_gives_the_scores_of_training(source, base, tmp_path):
    pretrained = load_base(base, device="cpu")
    task, model = task_of(source, base, pretrained), EmbModel(pretrained)
    save_emb_model(pretrained, tmp_path / "emb-ce")
    opened = EmbCrossEncoder(tmp_path / "emb-ce", device="cpu", max_query_tokens=5, max_item_tokens=20)
    assert (opened.pooling.query_pooling, opened.pooling.item_pooling) == ("cls", "sep")
    q, i = task.train.repeat_interleave(3), task.rows.repeat(2)[: 3 * len(task.train)]
    scores = score(model, task.pairs, q, i).numpy()
    texts = [task.source.queries[number].text for number in q], [task.source.items[row] for row in i]
    np.testing.assert_allclose(opened.score(*texts), scores, rtol=5e-3, atol=5e-3 * np.abs(scores).max())
    assert scores.std() > 1


def test_reranking_puts_the_highest_scores_first(source, base):
    pretrained = load_base(base, device="cpu")
    task, model = task_of(source, base, pretrained), EmbModel(pretrained)
    found = torch.arange(9).repeat(len(task.held_out), 1)
    ranked = rerank(model, found, task)
    scores = score(model, task.pairs, task.held_out.repeat_interleave(9), ranked.reshape(-1)).view_as(ranked)
    assert torch.equal(ranked.sort(1).values, found)
    assert (scores[:, :-1] >= scores[:, 1:]).all()
    assert not torch.equal(ranked, found)


def test_both_folders_open_and_hold_what_was_learned(trained, base):
    assert SentenceEncoder(trained / "de", device="cpu").max_tokens == 22
    EmbCrossEncoder(trained / "emb-ce", device="cpu")
    before = load_file(base / "model.safetensors")
    for folder in ("de", "emb-ce"):
        after = load_file(trained / folder / "model.safetensors")
        layer = "encoder.layer.1.output.dense.weight"
        assert after[layer].dtype == np.float16
        assert np.abs(after[layer] - before[layer]).max() > 1e-3


def test_the_same_seed_gives_the_same_weights(trained, source, base, tmp_path):
    for seed, same in (("0", True), ("1", False)):
        out = tmp_path / seed
        main([str(source), "--base", str(base), "--out", str(out), "--seed", seed, *TINY])
        for folder in ("de", "emb-ce"):
            one, other = ((root / folder / "model.safetensors").read_bytes() for root in (trained, out))
            assert (one == other) is same


def test_held_out_queries_share_nothing_with_those_to_train_on(tmp_path):
    folder = write_source(tmp_path / "shared")
    write_judgments(folder, [(n, n // 3) for n in range(QUERIES)])
    found = choose(folder, held_out=4)
    tested = {row for query in found.held_out for row in query.rows}
    assert len(found.held_out) == 4
    assert tested.isdisjoint(row for query in found.train for row in query.rows)
    assert len(found.train) == QUERIES - 3 * len(tested)


def test_rows_are_those_of_the_pool(source):
    found = choose(source, pool=5, limit=20)
    assert len(found.train) == 20
    assert len(found.items) == 20 + QUERIES // 5 + 5
    for query in found.queries:
        assert set(query.text.split()) <= set(found.items[query.rows[0]].split())
    assert found == choose(source, pool=5, limit=20)
    assert found != choose(source, pool=5, limit=20, seed=1)


def test_a_pool_larger_than_the_corpus_is_all_of_it(source):
    assert len(choose(source, pool=10_000).items) == QUERIES + OTHERS


def test_without_leaves_out_queries_and_items(source):
    found = choose(source, without=["old-", "absent"])
    assert len(found.queries) == QUERIES * 3 // 4
    assert len(found.items) == (QUERIES + OTHERS) * 3 // 4


def test_judgments_of_items_that_are_not_there_are_counted(tmp_path):
    folder = write_source(tmp_path / "cut")
    lines = (folder / "corpus.jsonl").read_text().splitlines(keepends=True)
    (folder / "corpus.jsonl").write_text("".join(lines[5:]))
    found = choose(folder)
    assert len(found.queries) == QUERIES - 5
    assert found.skipped["judgments of unknown items"] == 5


def test_negatives_are_never_relevant_nor_of_a_relevant_text():
    queries = [Query("a", [0, 3]), Query("b", [1])]
    items = ["x", "y", "z", "w", "x", "v"]
    relevance = Relevance(queries, items, device="cpu")
    assert relevance.max_relevant() == 3
    holds = relevance.holds(torch.arange(2)[:, None], torch.arange(6))
    assert holds.tolist() == [[True, False, False, True, True, False], [False, True, False, False, False, False]]
    vectors = torch.eye(6)
    near = nearest(vectors[:2] + torch.tensor([0, 0, 0.5, 0.2, 0.9, 0.3]), vectors, 3, exclude=relevance)
    assert near.tolist() == [[2, 5, 1], [4, 2, 5]]
    torch.manual_seed(0)
    drawn = torch.cat([draw_negatives(near, 6, 6, relevance) for _ in range(50)], 1)
    assert not relevance.holds(torch.arange(2)[:, None], drawn).any()
    assert set(drawn[1].tolist()) == {0, 2, 3, 4, 5}


def test_positives_are_relevant():
    queries = [Query("a", [0, 3]), Query("b", [1])]
    rng = random.Random(0)
    drawn = {tuple(draw_positives(queries, rng, device="cpu").tolist()) for _ in range(20)}
    assert drawn == {(0, 1), (3, 1)}


def test_contrast_leaves_out_other_relevant_items():
    vectors = torch.nn.functional.normalize(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]))
    own = torch.eye(3, dtype=torch.bool)
    both = own.clone()
    both[0, 1] = both[1, 0] = True
    assert contrastive_loss(vectors, vectors, own) > 0.3
    assert contrastive_loss(vectors, vectors, both) < 1e-6


def test_measures():
    queries = [Query("a", [7]), Query("b", [1, 2]), Query("c", [9])]
    found = torch.tensor([[7, 1, 2], [5, 2, 4], [1, 2, 3]])
    both = 1 + 1 / np.log2(3)
    quality = measure(found, queries)
    assert quality["accuracy"] == pytest.approx(1 / 3, abs=1e-4)
    assert quality["ndcg_at_10"] == pytest.approx((1 + (1 / np.log2(3)) / both) / 3, abs=1e-4)
    assert quality["recall_at_64"] == pytest.approx(1.5 / 3, abs=1e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--list-size", "5"], "--list-size must be at least 6, got 5"),
        (["--epochs-ce", "0"], "--epochs-ce` must be a positive integer"),
        (["--pool", "-1"], "--pool` must be a positive integer"),
        (["--rate-de", "2"], "--rate-de must be between 0 and 1"),
        (["--seed", "-1"], "seed` must be a nonnegative integer"),
        (["--base", "nowhere"], "--base must be the folder of a model"),
        (["--item-tokens", "60"], "must be at most 64 together"),
        (["--without", "q", "--without", "old-"], "at least 5 train queries"),
    ],
)
def test_bad_options(given, message, source, base, tmp_path):
    with pytest.raises(SystemExit, match=message):
        main([str(source), "--base", str(base), "--out", str(tmp_path), *TINY, *given])


def test_a_folder_that_is_no_source(base, tmp_path):
    (tmp_path / "empty").mkdir()
    for folder, message in (("absent", "absent"), ("empty", "queries.jsonl")):
        with pytest.raises(SystemExit, match=message):
            main([str(tmp_path / folder), "--base", str(base), "--out", str(tmp_path / "out"), *TINY])


def test_a_base_that_is_no_bert(source, tmp_path):
    roberta = tiny.save_cross_encoder(tmp_path / "roberta", "roberta")
    with pytest.raises(InputError, match="got roberta"):
        load_base(roberta, device="cpu")


def test_items_that_are_all_relevant(tmp_path, base):
    folder = write_source(tmp_path / "all")
    write_lines(folder / "corpus.jsonl", [{"_id": name("i", n), "text": "the same words"} for n in range(QUERIES)])
    with pytest.raises(SystemExit, match="all items are relevant to one query"):
        main([str(folder), "--base", str(base), "--out", str(tmp_path / "out"), *TINY])


def test_an_out_folder_with_files_is_refused(source, base, trained):
    options = read_options([str(source), "--base", str(base), "--out", str(trained), *TINY])
    with pytest.raises(InputError, match="--out must be a new or an empty folder"):
        check_options(options)
