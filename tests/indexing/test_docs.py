"""The code of docs/indexing.md runs as it stands, with small functions in place of the models."""

import re
from pathlib import Path

import numpy as np

import crossknn as ck

PAGE = Path(__file__).parents[2] / "docs" / "indexing.md"
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
    monkeypatch.setattr(ck, "CrossEncoder", lambda _: ck.function_scorer(count_words, fingerprint="words"))
    monkeypatch.setattr(ck, "SentenceEncoder", lambda _: ck.function_encoder(vectors_of, fingerprint="counts"))

    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(block, names)

    assert "items never scored" in capsys.readouterr().out
    assert len(names["hits"]) == 10
    assert len(ck.Index.load("corpus.ck")) == len(texts)
