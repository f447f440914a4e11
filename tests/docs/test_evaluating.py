"""The code of docs/evaluating.md runs as it stands, with small functions in place of the models."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import crossknn as ck
from crossknn.evaluate.contenders import strategy_names
from crossknn.strategies.registry import STRATEGIES
from tests.paths import ROOT

PAGE = ROOT / "docs" / "evaluating.md"


def count_letters(texts):
    return np.array([[text.count(letter) + 0.01 * len(text) for letter in "abcdef"] for text in texts], np.float32)


def write_beir(folder, texts):
    (folder / "qrels").mkdir(parents=True)
    for name, kept in (("corpus", texts), ("queries", [text[:12] for text in texts[:5]])):
        lines = [json.dumps({"_id": str(row), "text": text}) + "\n" for row, text in enumerate(kept)]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    judgments = [f"{row}\t{row}\t1\n" for row in range(5)]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judgments))


@pytest.mark.parametrize("name", strategy_names())
def test_the_search_space_of_every_strategy_is_on_the_page(name):
    text = PAGE.read_text(encoding="utf-8")
    rows = text[text.index("| name | candidates |") :].split("\n\n")[0].splitlines()
    (row,) = (row for row in rows if row.startswith(f"| `{name}` |"))
    space = dict(STRATEGIES[name].grid({}))
    if name == "quam":  # "as gar"
        space = {setting: values for setting, values in space.items() if setting not in STRATEGIES["gar"].grid({})}
    for setting, values in space.items():
        shown = ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
        assert f"`{setting}`: {shown}" in row


def test_the_code_of_the_page(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abcdef "), 30)) + f" word{row % 7}" for row in range(400)]
    monkeypatch.chdir(tmp_path)
    Path("corpus.jsonl").write_text(
        "".join(json.dumps({"_id": f"d{i}", "text": t}) + "\n" for i, t in enumerate(texts))
    )
    Path("queries.txt").write_text("abc word1\nfed word2\ncab bed\n")
    write_beir(Path("scifact"), texts)
    overlap = ck.function_scorer(
        lambda pairs: [float(count_letters([q])[0] @ count_letters([i])[0]) for q, i in pairs], fingerprint="overlap"
    )
    monkeypatch.setattr(ck, "CrossEncoder", lambda name: overlap, raising=False)
    monkeypatch.setattr(ck, "SentenceEncoder", lambda name: ck.function_encoder(count_letters), raising=False)
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S))
    names = {}
    exec(compile(code, str(PAGE), "exec"), names)
    assert len(names["results"]) == 2 * 3 * 3
    assert names["results"][0].seconds["scorer"] == pytest.approx(names["speed"].seconds([50]))
    assert Path("report/report.html").is_file()
    printed = capsys.readouterr().out
    assert "↳ Posterior" in printed
    assert [hits.query for hits in names["truth"]] == list(names["test"].texts)
    assert len(list(Path("truth").glob("*.npy"))) == 1
    assert "Posterior nDCG@10 " in printed
    assert f"nDCG@10: {names['difference'].mean:+.3f}, 95 % between" in printed
