"""The code of docs/indexing.md runs as it stands, with small functions in place of the models."""

from functools import partial

import numpy as np

import crossknn as ck
from tests.docs.doc_pages import blocks

BLOCKS = [text for language, text in blocks("docs/indexing.md") if language == "python"]
# These need a real encoder:
(DISTILLING,) = [block for block in BLOCKS if "ck.distill(" in block]
TEACHING, ADAPTING = [block for block in BLOCKS if "Teaching(" in block]
WORDS = ["river", "ice", "snow", "lake", "bread", "oven", "freeze", "top", "water", "cold", "winter", "flour"]


def vectors_of(texts):
    counts = np.array([[text.lower().count(word) for word in WORDS] for text in texts], np.float32)
    return counts.reshape(len(texts), len(WORDS)) + 0.01


def count_words(pairs):
    return [len(set(q.lower().split()) & set(i.lower().split())) + len(i) / 100 for q, i in pairs]


def test_the_code_of_the_page_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    texts = [f"{a} and {b} in {c}" for a in WORDS for b in WORDS[:4] for c in ("winter", "summer")]
    lines = [f'{{"_id": "{number}", "text": "{text}"}}' for number, text in enumerate(texts)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    (tmp_path / "train.txt").write_text("\n".join(f"{a} {b}" for a in WORDS for b in WORDS[:3]))
    monkeypatch.chdir(tmp_path)
    scorer = ck.function_scorer(count_words, fingerprint="words")
    encoder = ck.function_encoder(vectors_of, fingerprint="counts")
    monkeypatch.setattr(ck, "CrossEncoder", lambda _: scorer)
    monkeypatch.setattr(ck, "SentenceEncoder", lambda _: encoder)
    monkeypatch.setattr(ck, "open", partial(ck.open, scorer=scorer, encoder=encoder))  # functions have no names

    names = {}
    for block in BLOCKS:
        if block not in (DISTILLING, TEACHING, ADAPTING):
            exec(block, names)

    assert "items never scored" in capsys.readouterr().out
    assert len(names["hits"]) == 10
    assert len(ck.Index.load("corpus.ck")) == len(texts)


def given_names(encoder_folder):
    return {
        "ck": ck,
        "items": ck.Items([f"{word} and {other}" for word in WORDS for other in WORDS[:4]]),
        "scorer": ck.function_scorer(count_words, fingerprint="words"),
        "encoder": ck.SentenceEncoder(encoder_folder, device="cpu"),
        "train": WORDS,
    }


def test_teaching_runs_on_a_cpu_too(encoder_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = given_names(encoder_folder)
    exec(TEACHING, names)
    assert "taught by 8 lists" in capsys.readouterr().out
    assert len(names["hits"]) == 10
    exec(ADAPTING, names)
    assert names["adapted"].is_taught
    assert len(names["hits"]) == 10


def test_distilling_runs_on_a_cpu_too(encoder_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = given_names(encoder_folder)
    exec(DISTILLING.replace("cuda", "cpu"), names)
    before, after = map(float, capsys.readouterr().out.split())
    assert after <= before  # the best epoch is kept, and the first may be it
    names["index"].check_models(encoder=ck.SentenceEncoder("my-encoder", device="cpu"))
