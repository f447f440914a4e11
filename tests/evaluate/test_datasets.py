"""Datasets from small folders written here, what is refused in them, and a real one."""

import gzip
import json
import logging
import lzma
import re
import sys
import tarfile
from types import SimpleNamespace

import numpy as np
import pytest

from crossknn.errors import InputError, MissingExtra
from crossknn.evaluate.datasets import Dataset, Split
from crossknn.evaluate.matrices import read_scores
from crossknn.items.items import Items
from tests.paths import SHARED

CORPUS = [{"_id": f"d{n}", "title": f"title {n}", "text": f"text {n}"} for n in range(4)]
QUERIES = [{"_id": f"q{n}", "text": f"query {n}"} for n in range(4)]
HEADER = "query-id\tcorpus-id\tscore\n"
QRELS = {"test": HEADER + "q1\td0\t2\nq1\td3\t0\nq0\td1\t1\n", "train": HEADER + "q2\td2\t1\n"}


def write_lines(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def write_beir(folder, *, corpus=CORPUS, queries=QUERIES, qrels=QRELS, end=""):
    write_lines(folder / f"corpus.jsonl{end}", corpus)
    write_lines(folder / f"queries.jsonl{end}", queries)
    (folder / "qrels").mkdir()
    for name, text in qrels.items():
        data = gzip.compress(text.encode()) if end else text.encode()
        (folder / "qrels" / f"{name}.tsv{end}").write_bytes(data)
    return folder


def one_split(text):
    return {"qrels": {"test": HEADER + text}}


@pytest.mark.parametrize("end", ["", ".gz"])
def test_a_beir_folder_is_read_in_the_order_of_its_judgments(tmp_path, end):
    dataset = Dataset.from_beir(write_beir(tmp_path / "tiny", end=end))
    assert repr(dataset) == "Dataset('tiny', 4 items, queries: 2 test, 1 train)"
    assert dataset.items.texts_of([0]) == ["title 0 text 0"]
    test = dataset.split("test")
    assert (test.ids, test.texts) == (("q1", "q0"), ("query 1", "query 0"))
    assert test.judgments == ({"d0": 2, "d3": 0}, {"d1": 1})
    assert test.relevant == [["d0"], ["d1"]]
    assert test.first(1).ids == test.first(1).take([0]).ids == ("q1",)
    assert dataset.skipped == {}


def test_only_the_splits_asked_for_are_read_and_unknown_ones_are_named(tmp_path):
    folder = write_beir(tmp_path, qrels={**QRELS, "broken": ""})
    dataset = Dataset.from_beir(folder, splits=["train"])
    assert list(dataset.splits) == ["train"]
    with pytest.raises(InputError, match=r"no split 'test', only 'train'"):
        dataset.split("test")
    with pytest.raises(InputError, match=r"no split 'dev', only 'broken', 'test', 'train'"):
        Dataset.from_beir(folder, splits=["dev"])


def test_generated_queries_are_a_split_of_their_own(tmp_path, caplog):
    folder = write_beir(tmp_path / "tiny")
    write_lines(folder / "qgen-queries.jsonl", [{"_id": "g1", "text": "made up"}, {"_id": "g2", "text": "query 1"}])
    (folder / "qgen-qrels").mkdir()
    (folder / "qgen-qrels" / "train.tsv").write_text(HEADER + "g1\td2\t1\ng2\td0\t1\n")
    assert Dataset.from_beir(folder).split("pseudo").texts == ("made up", "query 1")
    (warning,) = caplog.messages
    assert "1 of 2 test queries have the text of a pseudo query" in warning


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qrels": {}}, "qrels: there is no file <split>.tsv"),
        ({"qrels": {"test": ""}}, "test.tsv: there are no judgments"),
        (one_split(""), "test.tsv: there are no judgments"),
        (one_split("q9\td0\t1\n"), "test.tsv:2: there is no query with the id 'q9'"),
        (one_split("q1\td0\t1\nq0\td9\t1\n"), "test.tsv:3: there is no item with the id 'd9'"),
        (one_split("q1\td0\t0\n"), "test.tsv: query 'q1' has no relevant item"),
        (one_split("q1\td0\n"), r"test.tsv:2: a judgment must be"),
        (one_split("q1\td0\tmuch\n"), r"got str 'q1\td0\tmuch'"),
        (one_split("q1\td0\t1\nq1\td0\t2\n"), "test.tsv:3: item 'd0' is judged twice"),
        ({"queries": [*QUERIES, QUERIES[1]]}, "queries.jsonl:5: query ids must be distinct, got 'q1' again"),
        ({"queries": [{"_id": "q0", "text": " "}]}, "queries.jsonl:1: query 'q0' has no text"),
        ({"queries": [{"text": "no id"}]}, "queries.jsonl:1: "),
        ({"corpus": [*CORPUS, CORPUS[0]]}, "corpus.jsonl:5: "),
    ],
)
def test_what_is_off_in_a_beir_folder_is_named_with_its_place(tmp_path, changes, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Dataset.from_beir(write_beir(tmp_path, **changes))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("corpus.jsonl", "corpus.jsonl"),
        ("queries.jsonl", "neither queries.jsonl nor queries.jsonl.gz"),
    ],
)
def test_a_missing_file_is_named(tmp_path, name, message):
    (write_beir(tmp_path) / name).unlink()
    with pytest.raises(InputError, match=message):
        Dataset.from_beir(tmp_path)


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"none: does not exist"):
        Dataset.from_beir(tmp_path / "none")


def test_unusable_records_can_be_left_out_and_are_counted(tmp_path, caplog):
    text = "q9\td0\t1\nq1\td9\t1\nq1\td0\t1\nq2\td8\t1\nq3\td0\t0\n"
    dataset = Dataset.from_beir(write_beir(tmp_path / "tiny", **one_split(text)), unusable="skip")
    assert dataset.split("test").judgments == ({"d0": 1},)
    assert dataset.skipped == {
        "judgments of unknown queries": 1,
        "judgments of unknown items": 2,
        "queries without relevant items": 1,
    }
    assert "tiny: 2 records were skipped: judgments of unknown items" in caplog.text
    with pytest.raises(InputError, match="no query has a relevant item"):
        Dataset.from_beir(write_beir(tmp_path / "other", **one_split("q1\td9\t1\n")), unusable="skip")
    with pytest.raises(InputError, match=r"`unusable` must be one of"):
        Dataset.from_beir(tmp_path / "tiny", unusable="keep")


def test_test_queries_with_the_text_of_a_train_query_are_counted(tmp_path, caplog):
    queries = [{**query, "text": "the same"} if query["_id"] in ("q0", "q2") else query for query in QUERIES]
    dataset = Dataset.from_beir(write_beir(tmp_path / "tiny", queries=queries))
    assert (dataset.shared_texts("train", "test"), dataset.shared_texts("train", "dev")) == (1, 0)
    assert "tiny: 1 of 2 test queries have the text of a train query" in caplog.text


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (((), (), ()), "a split must have at least one query"),
        ((("a",), ("x",), ()), "got 1 ids, 1 texts and 0 judgments"),
        ((("a", "a"), ("x", "y"), ({"d": 1}, {"d": 1})), "query ids must be distinct, got 'a' 2 times"),
        ((("a",), (" ",), ({"d": 1},)), "every query must have text; query 'a'"),
        ((("a",), ("x",), ({"d": 0},)), "every query must have a relevant item; query 'a'"),
    ],
)
def test_a_split_that_exists_is_valid(split, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Split(*split)


def test_a_dataset_that_exists_is_valid():
    split = Split(("a",), ("x",), ({"7": 1},))
    with pytest.raises(InputError, match=r"tiny: the split 'test' judges '7', which is no item's id."):
        Dataset("tiny", Items(["one"]), {"test": split})
    with pytest.raises(InputError, match=r"tiny: a dataset must have at least one split"):
        Dataset("tiny", Items(["one"]), {})
    with pytest.raises(InputError, match=r"`name` must be a nonempty string"):
        Dataset("", Items(["one"]), {"test": split})


# --- ZeShEL

WORDS = "Zork Zork is the mage of the red tower who guards it"


def mention(number, **changes):
    known = {
        "mention_id": f"m{number}",
        "context_document_id": "A",
        "label_document_id": "B",
        "start_index": 7,
        "end_index": 8,
        "text": "red tower",
        "corpus": "yugioh",
        "category": "LOW_OVERLAP",
    }
    return {**known, **changes}


def write_zeshel(folder, *mentions):
    documents = [("A", "Zork", WORDS), ("B", "Tower", "Tower Tower is red")]
    records = [{"document_id": id_, "title": title, "text": text} for id_, title, text in documents]
    write_lines(folder / "documents" / "yugioh.json", records)
    write_lines(folder / "documents" / "lego.json", records)
    write_lines(folder / "mentions" / "test.json", mentions or [mention(n) for n in range(20)])
    write_lines(folder / "mentions" / "val.json", [mention(0, corpus="lego", text="elsewhere")])
    return folder


def test_a_zeshel_mention_is_a_query_marked_in_its_context(tmp_path):
    folder = write_zeshel(tmp_path, mention(1), mention(2, start_index=0, end_index=0, text="Zork"))
    dataset = Dataset.from_zeshel(folder, "yugioh", train=1, context=2)
    assert dataset.name == "yugioh"
    assert list(dataset.items.ids) == ["A", "B"]
    assert dataset.items.text(1) == "Tower Tower Tower is red"
    texts = {**dict(zip(dataset.split("train").ids, dataset.split("train").texts, strict=True))}
    texts |= dict(zip(dataset.split("test").ids, dataset.split("test").texts, strict=True))
    assert texts == {"m1": "of the [ red tower ] who guards", "m2": "[ Zork ] Zork is"}
    assert dataset.split("test").relevant == [["B"]]
    marked = Dataset.from_zeshel(folder, "yugioh", train=1, context=1, marks=("<m>", "</m>"))
    assert "the <m> red tower </m> who" in {*marked.split("train").texts, *marked.split("test").texts}


def test_the_random_split_keeps_its_size_and_repeats_with_its_seed(tmp_path):
    folder = write_zeshel(tmp_path)
    few, many = (Dataset.from_zeshel(folder, "yugioh", train=size, seed=3) for size in (5, 8))
    other = Dataset.from_zeshel(folder, "yugioh", train=5, seed=4)
    again = Dataset.from_zeshel(folder, "yugioh", train=5, seed=3)
    assert (len(few.split("train")), len(few.split("test"))) == (5, 15)
    assert few.split("train") == again.split("train") != other.split("train")
    assert {*few.split("train").ids} < {*many.split("train").ids}
    assert {*few.split("train").ids} | {*few.split("test").ids} == {f"m{n}" for n in range(20)}


@pytest.mark.parametrize(
    ("mentions", "options", "message"),
    [
        ([mention(1), mention(1)], {}, "test.json:2: mention ids must be distinct, got 'm1'"),
        ([mention(1, label_document_id="C")], {}, "test.json:1: yugioh has no document with the id 'C'"),
        ([mention(1, context_document_id="C")], {}, "test.json:1: yugioh has no document with the id 'C'"),
        (
            [mention(1, end_index=9)],
            {},
            "test.json:1: the mention 'red tower' is not at words 7 to 9: got 'red tower who'",
        ),
        ([mention(1, start_index=-4)], {}, "at words -4 to 8: got ''"),
        ([mention(1, start_index="7")], {}, "test.json:1: field 'start_index' must be an integer, got str '7'"),
        ([mention(1, text=None)], {}, "test.json:1: field 'text' must be a string"),
        (
            [mention(1, corpus="coronation_street")],
            {},
            "no mentions of 'yugioh', only of 'coronation_street', 'lego'",
        ),
        (
            [],
            {"train": 20},
            "`train` must be below the number of mentions of yugioh (20)",
        ),
        ([], {"train": 0}, "`train` must be a positive integer"),
        ([], {"seed": -1}, "`seed` must be a nonnegative integer"),
        ([], {"domain": "military"}, "no documents of the domain 'military', only of 'lego', 'yugioh'"),
    ],
)
def test_what_is_off_in_zeshel_is_named_with_its_place(tmp_path, mentions, options, message):
    folder = write_zeshel(tmp_path, *mentions)
    with pytest.raises(InputError, match=re.escape(message)):
        Dataset.from_zeshel(folder, **{"domain": "yugioh", "train": 1, **options})


def test_mentions_of_unknown_documents_can_be_left_out(tmp_path):
    folder = write_zeshel(tmp_path, mention(1), mention(2, label_document_id="C"), mention(3))
    dataset = Dataset.from_zeshel(folder, "yugioh", train=1, unusable="skip")
    assert dataset.skipped == {"mentions of or in unknown documents": 1}
    for path in (folder / "mentions").glob("*"):
        path.unlink()
    with pytest.raises(InputError, match=r"mentions: there are no files <split>.json"):
        Dataset.from_zeshel(folder, "yugioh")


def test_a_title_mark_stands_between_title_and_text(tmp_path):
    dataset = Dataset.from_zeshel(write_zeshel(tmp_path), "yugioh", train=1, title_mark="[T]")
    assert list(dataset.items.ids) == ["A", "B"]
    assert dataset.items.text(1) == "Tower [T] Tower Tower is red"
    assert dataset.split("test").relevant[0] == ["B"]


# --- ir_datasets


class Part(SimpleNamespace):
    """What `ir_datasets.load` gives back, as far as it is used."""

    def __init__(self, queries, qrels):
        super().__init__(queries=queries, qrels=qrels)

    def docs_iter(self):
        return (SimpleNamespace(doc_id=f"d{n}", default_text=lambda n=n: f"text {n}") for n in range(3))

    def queries_iter(self):
        return (SimpleNamespace(query_id=id_, default_text=lambda id_=id_: f"query {id_}") for id_ in self.queries)

    def qrels_iter(self):
        return (SimpleNamespace(query_id=q, doc_id=d, relevance=r) for q, d, r in self.qrels)

    def has_docs(self):
        return True

    def has_queries(self):
        return bool(self.queries)

    has_qrels = has_queries


@pytest.fixture
def library(monkeypatch):
    parts = {
        "beir/tiny": Part([], []),
        "beir/tiny/test": Part(["a", "b"], [("a", "d1", 1), ("b", "d2", 2)]),
        "beir/tiny/train": Part(["c"], [("c", "d0", 1)]),
        "beir/twice": Part(["a", "a"], [("a", "d1", 1)]),
        "beir/lost": Part(["a"], [("a", "d1", 1), ("a", "d9", 1)]),
    }
    monkeypatch.setitem(sys.modules, "ir_datasets", SimpleNamespace(load=parts.__getitem__))


@pytest.mark.usefixtures("library")
def test_ir_datasets_are_read_by_name_and_splits():
    dataset = Dataset.from_ir_datasets("beir/tiny", splits=["train", "test"])
    assert repr(dataset) == "Dataset('beir/tiny', 3 items, queries: 1 train, 2 test)"
    assert dataset.split("test").texts == ("query a", "query b")
    assert dataset.split("test").judgments == ({"d1": 1}, {"d2": 2})
    assert list(Dataset.from_ir_datasets("beir/tiny/test").splits) == ["test"]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("beir/none", "ir_datasets has no dataset 'beir/none'"),
        ("beir/tiny", "beir/tiny: this dataset of ir_datasets has no queries"),
        ("beir/twice", "query ids must be distinct, got 'a' again"),
        ("beir/lost", "beir/lost: judgment 1: there is no item with the id 'd9'"),
    ],
)
def test_what_ir_datasets_cannot_give_is_said(name, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Dataset.from_ir_datasets(name)


@pytest.mark.usefixtures("library")
def test_a_command_line_names_any_kind_of_set(tmp_path):
    assert list(Dataset.open("ir_datasets:beir/tiny").splits) == ["train", "test"]
    assert list(Dataset.open("ir_datasets:beir/tiny/train").splits) == ["test"]  # what a name has judgments for
    with pytest.raises(InputError, match="ir_datasets has no dataset 'beir/none'"):
        Dataset.open("ir_datasets:beir/none")
    assert Dataset.open(write_beir(tmp_path / "tiny")).name == "tiny"
    write_zeshel(tmp_path / "a:b")
    assert len(Dataset.open(f"zeshel:{tmp_path / 'a:b'}:yugioh:5").split("train")) == 5
    with pytest.raises(InputError, match="below the number of mentions of yugioh"):
        Dataset.open(f"zeshel:{tmp_path / 'a:b'}:yugioh")  # 500 train queries by default


def test_without_ir_datasets_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(MissingExtra, match=r"pip install 'crossknn\[datasets\]'"):
        Dataset.from_ir_datasets("beir/scifact/test")


# --- folders of scores


def write_scores(folder, *, train=True, **texts):
    rng = np.random.default_rng(0)
    folder.mkdir()
    for name, queries in (("test", 4), ("train", 3))[: 1 + train]:
        np.save(folder / f"{name}_scores.f16.npy", rng.normal(size=(queries, 5)).astype(np.float16))
        np.save(folder / f"{name}_query_embeddings.f16.npy", rng.normal(size=(queries, 2)).astype(np.float16))
    np.savez(folder / "test_top1000.npz", rows=np.array([[3], [0], [1], [2]], np.int32), scores=np.full((4, 1), 9.1))
    np.save(folder / "item_embeddings.f16.npy", rng.normal(size=(5, 2)).astype(np.float16))
    found = {
        "items": [f"text {n}" for n in range(5)],
        "item_ids": [f"d{n}" for n in range(5)],
        "test": [{"id": f"q{n}", "text": f"query {n}", "relevant": [f"d{n}"]} for n in range(4)],
        "train": [{"id": f"t{n}", "text": f"train {n}", "relevant": ["d0", "d1"]} for n in range(3 * train)],
    }
    with lzma.open(folder / "texts.json.xz", "wt") as file:
        json.dump({**found, **texts}, file)
    return folder


def test_a_folder_of_scores_has_scores_texts_and_relevant_rows(tmp_path):
    found = read_scores(write_scores(tmp_path / "tiny"))
    assert repr(found.dataset) == "Dataset('tiny', 5 items, queries: 3 train, 4 test)"
    assert found.test.scores[[0, 1, 2, 3], [3, 0, 1, 2]].tolist() == pytest.approx([9.1] * 4)
    assert found.test.scores.dtype == np.float32
    assert [rows.tolist() for rows in found.train.relevant] == [[0, 1]] * 3
    assert [len(part) for part in (found.train, found.test)] == [3, 4]


def test_texts_that_unpack_to_too_much_are_refused(tmp_path):
    folder = write_scores(tmp_path / "tiny", items=["x" * 100_000] * 5)
    with pytest.raises(InputError, match=r"texts\.json\.xz: it unpacks to more than 400,000 bytes"):
        Dataset.from_scores(folder, max_unpacked_bytes=400_000)
    assert len(Dataset.from_scores(folder, max_unpacked_bytes=600_000).items) == 5


def test_without_train_scores_the_first_half_is_train(tmp_path):
    found = read_scores(write_scores(tmp_path / "tiny", train=False))
    assert (found.dataset.split("train").ids, found.dataset.split("test").ids) == (("q0", "q1"), ("q2", "q3"))
    assert found.test.scores[0, 1] == pytest.approx(9.1)
    assert [rows.tolist() for rows in found.test.relevant] == [[2], [3]]


def test_a_folder_of_scores_may_have_bm25_scores_instead_of_texts(tmp_path):
    folder = write_scores(tmp_path / "tiny", train=False)
    (folder / "texts.json.xz").unlink()
    np.save(folder / "test_bm25.f16.npy", np.arange(20, dtype=np.float16).reshape(4, 5))
    (folder / "test_relevant_rows.json").write_text("[[0], [1], [2, 3], [4]]")
    found = read_scores(folder)
    assert found.dataset is None
    assert found.test.bm25[0].tolist() == [10, 11, 12, 13, 14]
    assert [rows.tolist() for rows in found.test.relevant] == [[2, 3], [4]]
    with pytest.raises(InputError, match=r"texts.json.xz: .* do not exist"):
        Dataset.from_scores(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[[0], [], [2], [3]]",
            r"query 1 must have a list of rows from 0 to 4, got \[\]",
        ),
        ("[[0], [1], [2, 5], [3]]", "query 2 must have .* got \\[2, 5\\]"),
        ("[[0], [1], [2], [-1]]", "query 3 must have"),
        ('[["0"], [1], [2], [3]]', "query 0 must have"),
        ("[0, 1, 2, 3]", "query 0 must have"),
        ("{}", "must be a list of rows for every query, got dict"),
        ("[[0], [1]", "is not JSON"),
        ("[[0], [1], [2]]", r"relevant rows must have shape \(4,\), got \(3,\)"),
    ],
)
def test_relevant_rows_that_cannot_be_used(tmp_path, text, message):
    folder = write_scores(tmp_path / "tiny", train=False)
    (folder / "texts.json.xz").unlink()
    (folder / "test_relevant_rows.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_scores(folder)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            {"test": [{"id": "q0", "text": "x", "relevant": []}]},
            "test: query 0: query 'q0' has no relevant item",
        ),
        (
            {"test": [{"id": "q0", "text": "x", "relevant": ["z"]}]},
            "query 0: there is no item with the id 'z'",
        ),
        (
            {"test": [{"id": "q0", "text": "x"}]},
            "is not a JSON file of items and queries (KeyError('relevant'))",
        ),
        (
            {"test": [{"id": "q0", "text": "x", "relevant": ["d0"]}]},
            "the scores of 4 test queries, but the texts of 1",
        ),
        ({"items": ["x"], "item_ids": ["d0"]}, "there is no item with the id 'd1'"),
    ],
)
def test_texts_that_do_not_fit_the_scores_are_refused(tmp_path, texts, message):
    with pytest.raises(InputError, match=re.escape(message)):
        read_scores(write_scores(tmp_path / "tiny", **texts))


def test_arrays_that_do_not_fit_or_are_missing_are_refused(tmp_path):
    folder = write_scores(tmp_path / "tiny")
    np.save(folder / "train_query_embeddings.f16.npy", np.zeros((2, 2), np.float16))
    with pytest.raises(InputError, match=r"train_scores.f16.npy: query vectors must have shape \(3, 2\), got \(2, 2\)"):
        read_scores(folder)
    (folder / "test_scores.f16.npy").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"test_scores.f16.npy: is not an array"):
        read_scores(folder)
    (folder / "item_embeddings.f16.npy").unlink()
    with pytest.raises(InputError, match=r"item_embeddings.f16.npy: .* does not exist"):
        read_scores(folder)


# --- a real set


def test_scifact_has_its_known_sizes(tmp_path, caplog):
    archive = SHARED / "data" / "scifact.tar.xz"
    if not archive.exists():
        pytest.skip("needs scifact.tar.xz in ../shared/data")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")
    with caplog.at_level(logging.WARNING):
        dataset = Dataset.from_beir(tmp_path / "scifact")
    assert repr(dataset) == "Dataset('scifact', 5183 items, queries: 300 test, 809 train)"
    assert dataset.shared_texts("train", "test") == 2
    assert "scifact: 2 of 300 test queries have the text of a train query" in caplog.text
