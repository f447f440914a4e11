"""Rerankers of every kind score as sentence-transformers does, which applies the makers' prompts and heads."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossknn import CrossEncoder
from crossknn.errors import InputError
from tests.scorers import tiny
from tests.scorers import tiny_rerankers as make

torch = pytest.importorskip("torch")
sentence_transformers = pytest.importorskip("sentence_transformers")

QWEN: dict[str, Any] = {"model_type": "qwen3", "head_dim": 8}
INSTRUCTION = "Retrieve notes on ice.\nBe strict"


def open_model(folder: Path, **options: Any) -> CrossEncoder:
    return CrossEncoder(folder, device="cpu", **options)


def pairs() -> tuple[list[str], list[str]]:
    """Pairs of mixed lengths, among them empty ones, and texts that a tokenizer may merge with a prompt."""
    queries, items = tiny.pairs(count=16)
    edges = ["why?", " spaces ", "\nlines\n", "3.", "it's", "漢字 🙂", ""]
    return [*queries, *edges, ""], [*items, *reversed(edges), ""]


def predict(folder: Path, queries: list[str], items: list[str], **options: Any) -> np.ndarray:
    """The raw scores of sentence-transformers."""
    model = sentence_transformers.CrossEncoder(str(folder), device="cpu", max_length=options.pop("max_length", None))
    return model.predict(list(zip(queries, items, strict=True)), activation_fn=torch.nn.Identity(), **options)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of each kind."""
    root = tmp_path_factory.mktemp("rerankers")
    bert, qwen, gemma = tiny.bert_tokenizer(), make.qwen_tokenizer(), make.gemma_tokenizer(make.CHAT_TEMPLATE)
    stripping, item_first = (make.qwen_tokenizer(text) for text in (make.STRIPPING_TEMPLATE, make.ITEM_FIRST_TEMPLATE))
    classifier, causal = "AutoModelForSequenceClassification", "AutoModelForCausalLM"
    found = {
        "qwen3 classifier": make.save(
            root / "a", make.config_of(**QWEN, tokenizer=qwen, num_labels=1), qwen, auto=classifier
        ),
        "qwen3 language model": make.save(root / "b", make.config_of(**QWEN, tokenizer=qwen), qwen, auto=causal),
        "qwen2, stripped texts": make.save(root / "c", make.config_of("qwen2", stripping), stripping, auto=causal),
        "llama, item first": make.save(root / "d", make.config_of("llama", item_first), item_first, auto=causal),
        "gemma2, capped logits": make.save(
            root / "e",
            make.config_of("gemma2", gemma, head_dim=8, final_logit_softcapping=3.0, query_pre_attn_scalar=8),
            gemma,
            auto=causal,
        ),
        "modernbert": make.save(
            root / "f",
            make.config_of("modernbert", bert, num_labels=1, local_attention=16),
            bert,
            auto=classifier,
        ),
        "modular, mean": make.save_modular(root / "g", pooling="mean", activation=torch.nn.GELU()),
        "modular, cls": make.save_modular(root / "h", pooling="cls", activation=torch.nn.Tanh()),
        "modular, last token": make.save_modular(root / "i", pooling="lasttoken", activation=torch.nn.SiLU()),
        "modular, max": make.save_modular(root / "j", pooling="max", activation=torch.nn.ReLU()),
        "xlm-roberta": tiny.save_cross_encoder(root / "k", "xlm-roberta"),
        "deberta-v2": tiny.save_cross_encoder(root / "l", "deberta-v2"),
    }
    for name in ("qwen3 language model", "qwen3 classifier", "xlm-roberta", "deberta-v2"):  # with modules.json
        saved = root / f"{name}, saved"
        sentence_transformers.CrossEncoder(str(found[name]), device="cpu").save(str(saved))
        found[f"{name}, saved"] = saved
    modules = sentence_transformers.CrossEncoder(str(found["qwen3 language model"]), device="cpu")
    modules[1].false_token_id = None
    modules.save(str(root / "one token"))
    found["one token"] = root / "one token"
    for name, model, prompt in (
        ("saved prompt", tiny.save_cross_encoder(root / "bert", "bert"), "search query: "),
        ("saved instruction", found["qwen3 language model"], "Find papers"),
    ):
        prompts = {"prompts": {"search": prompt}, "default_prompt_name": "search"}
        sentence_transformers.CrossEncoder(str(model), device="cpu", **prompts).save(str(root / name))
        found[name] = root / name
    return found


KINDS = [
    "qwen3 classifier",
    "qwen3 classifier, saved",
    "qwen3 language model",
    "qwen3 language model, saved",
    "one token",
    "saved instruction",
    "qwen2, stripped texts",
    "llama, item first",
    "gemma2, capped logits",
    "modernbert",
    "modular, mean",
    "modular, cls",
    "modular, last token",
    "modular, max",
    "xlm-roberta, saved",
    "deberta-v2, saved",
    "saved prompt",
]
CHAT_KINDS = [kind for kind in KINDS[:9] if kind != "llama, item first"]  # whose chat template takes an instruction


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_sentence_transformers(folders, kind):
    queries, items = pairs()
    scores = open_model(folders[kind], batch_tokens=600).score(queries, items)
    expected = predict(folders[kind], queries, items)
    np.testing.assert_allclose(scores, expected, atol=1e-4 * max(1, np.abs(expected).max()))
    assert np.ptp(expected) > 0.1  # the pairs differ enough for the comparison to mean something


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "llama, item first"])
def test_long_items_are_cut_as_in_sentence_transformers(folders, kind):
    """What follows an item in a prompt is never cut."""
    length = 120 if kind in KINDS[:9] else 40
    queries = ["how do rivers freeze?"] * 4
    items = [tiny.words(seed, 300) for seed in range(4)]
    scorer = open_model(folders[kind], max_length=length)
    expected = predict(folders[kind], queries, items, max_length=length)
    np.testing.assert_allclose(scorer.score(queries, items), expected, atol=2e-4)
    assert scorer.counts.items_cut == 4


def test_a_query_behind_a_long_item_is_kept(folders):
    """sentence-transformers cuts such a prompt's query away, so that the model's own tokens are the reference."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = folders["llama, item first"]
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).eval()
    query, items = "how do rivers freeze?", [tiny.words(seed, 300) for seed in range(4)]
    tail = ids_of(tokenizer, f"\n<Query>: {query} ??")
    yes, no = ids_of(tokenizer, "yes"), ids_of(tokenizer, "no")
    expected = []
    for item in items:
        ids = [*ids_of(tokenizer, f"<Document>: {item}")[: 120 - len(tail)], *tail]
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
        expected.append(float(logits[yes] - logits[no]))
    scores = open_model(folder, max_length=120).score([query] * 4, items)
    np.testing.assert_allclose(scores, expected, atol=2e-4)


@pytest.mark.parametrize("kind", CHAT_KINDS)
def test_an_instruction_is_the_system_message(folders, kind):
    fitting = [pair for pair in zip(*pairs(), strict=True) if len(" ".join(pair)) < 400]
    queries, items = (list(texts) for texts in zip(*fitting, strict=True))
    scorer = open_model(folders[kind], instruction=INSTRUCTION)
    expected = predict(folders[kind], queries, items, prompt=INSTRUCTION)
    np.testing.assert_allclose(scorer.score(queries, items), expected, atol=2e-4)
    plain = open_model(folders[kind])
    assert scorer.fingerprint != plain.fingerprint
    assert np.abs(scorer.score(queries, items) - plain.score(queries, items)).max() > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_alone_is_as_in_a_batch_and_another_process_opens_the_same(folders, kind):
    queries, items = pairs()
    scorer = open_model(folders[kind])
    scores = scorer.score(queries, items)
    alone = [scorer.score([query], [item])[0] for query, item in zip(queries, items, strict=True)]
    np.testing.assert_allclose(alone, scores, atol=1e-4)
    again = pickle.loads(pickle.dumps(scorer))
    assert again.fingerprint == scorer.fingerprint
    np.testing.assert_array_equal(again.score(queries, items), scores)


def test_a_language_model_is_a_classifier_of_one_row(folders):
    queries, items = pairs()
    both = open_model(folders["qwen3 language model"]).score(queries, items)
    yes, no = (
        open_model(folders["qwen3 language model"], true_token=token).score(queries, items) for token in ("yes", "no")
    )
    np.testing.assert_allclose(yes - no, both, atol=1e-4)
    swapped = open_model(folders["qwen3 language model"], true_token="no", false_token="yes")
    np.testing.assert_allclose(swapped.score(queries, items), -both, atol=1e-5)
    assert swapped.fingerprint != open_model(folders["qwen3 language model"]).fingerprint


@pytest.mark.parametrize("template", ["<Query>: {query}\n<Document>: {item}\nRelevant:", "{item}\n\nanswers {query}?"])
@pytest.mark.parametrize("kind", ["qwen3 language model", "gemma2, capped logits", "qwen3 classifier", "modernbert"])
def test_a_template_is_one_text_to_the_tokenizer(folders, kind, template):
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    queries, items = pairs()
    folder = folders[kind]
    tokenizer, causal = AutoTokenizer.from_pretrained(folder), "model" not in kind and "gemma" not in kind
    model = (AutoModelForSequenceClassification if causal else AutoModelForCausalLM).from_pretrained(folder).eval()
    expected = []
    for query, item in zip(queries, items, strict=True):
        text = template.replace("{query}", query).replace("{item}", item)
        with torch.inference_mode():
            encoded = tokenizer(text, return_tensors="pt", truncation=False)
            logits = model(**{name: encoded[name] for name in ("input_ids", "attention_mask")}).logits
        true, false = (tokenizer.convert_tokens_to_ids(token) for token in ("yes", "no"))
        expected.append(float(logits[0, 0] if causal else logits[0, -1, true] - logits[0, -1, false]))
    options = {} if causal else {"true_token": "yes", "false_token": "no"}
    scores = open_model(folder, template=template, max_length=256, **options).score(queries, items)
    keep = [len(tokenizer(q + i)["input_ids"]) < 200 for q, i in zip(queries, items, strict=True)]
    np.testing.assert_allclose(scores[keep], np.array(expected)[keep], atol=2e-4)


def test_a_template_with_an_instruction(folders):
    options = {"template": "{instruction}\n{query}\n{item}\n"}
    one, other = (
        open_model(folders["qwen3 classifier"], instruction=text, **options) for text in ("Find ice.", "Find water.")
    )
    assert one.score(["a"], ["b"]) != other.score(["a"], ["b"])
    assert one.fingerprint != other.fingerprint


def ids_of(tokenizer, *texts):
    return [token for text in texts for token in tokenizer(text, add_special_tokens=False)["input_ids"]]


def qwen3_ids(tokenizer, query, item):
    """As in the model card of Qwen3-Reranker."""
    prefix = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    instruction = "Given a web search query, retrieve relevant passages that answer the query"
    text = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {item}"
    return ids_of(tokenizer, prefix, text, "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")


def mxbai_ids(tokenizer, query, item):
    """As in the package mxbai-rerank."""
    prefix = (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n"
    )
    task = (
        "You are a search relevance expert who evaluates how well documents match search queries. For each "
        "query-document pair, carefully analyze the semantic relationship between them, then provide your binary "
        "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:"
    )
    suffix = "<|im_end|>\n<|im_start|>assistant\n"
    return ids_of(tokenizer, prefix, f"query: {query}", "\n", f"document: {item}", "\n", task, suffix)


def bge_gemma_ids(tokenizer, query, item):
    """As in FlagEmbedding."""
    question = (
        "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a "
        "prediction of either 'Yes' or 'No'."
    )
    return [tokenizer.bos_token_id, *ids_of(tokenizer, f"A: {query}", "\n", f"B: {item}", "\n", question)]


def zerank_ids(tokenizer, query, item):
    """As in modeling_zeranker.py of zerank-1, with the chat template of Qwen3."""
    chat = f"<|im_start|>system\n{query.strip()}<|im_end|>\n<|im_start|>user\n{item.strip()}<|im_end|>\n"
    return ids_of(tokenizer, chat + "<|im_start|>assistant\n")


def ctxl_ids(tokenizer, query, item, instruction=""):
    """As in the model cards of ctxl-rerank-v2."""
    instruction = f" {instruction}" if instruction else ""
    task = "Check whether a given document contains information helpful to answer the query."
    return tokenizer(f"{task}\n<Document> {item}\n<Query> {query}{instruction} ??")["input_ids"]


def nemotron_ids(tokenizer, query, item):
    """As in the model card of llama-nemotron-rerank-1b-v2."""
    return tokenizer(f"question:{query} \n \n passage:{item}")["input_ids"]


def family_tokenizer(kind: str) -> Any:
    plain_chat = make.PLAIN_CHAT_TEMPLATE  # of a language model, without the roles of a pair
    if kind == "qwen":
        return make.qwen_tokenizer(plain_chat)
    return make.gemma_tokenizer(prepend=kind == "mistral")


FAMILIES = {
    "Qwen3-Reranker-0.6B": ({**QWEN}, "qwen", qwen3_ids, ("yes", "no")),
    "mxbai-rerank-base-v2": ({"model_type": "qwen2"}, "qwen", mxbai_ids, ("1", "0")),
    "bge-reranker-v2-gemma": ({"model_type": "gemma", "head_dim": 8}, "gemma", bge_gemma_ids, ("Yes",)),
    "zerank-1-small": ({**QWEN}, "qwen", zerank_ids, ("Yes",)),
    "ctxl-rerank-v2-instruct-multilingual-1b": ({**QWEN}, "qwen", ctxl_ids, (0,)),
    "ctxl-rerank-v2-instruct-multilingual-6b": ({"model_type": "mistral"}, "mistral", ctxl_ids, (0,)),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_known_families_are_prompted_as_in_their_makers_code(tmp_path, name):
    from transformers import AutoModelForCausalLM

    config, tokenizer_kind, make_ids, tokens = FAMILIES[name]
    tokenizer = family_tokenizer(tokenizer_kind)
    folder = make.save(
        tmp_path / name,
        make.config_of(**config, tokenizer=tokenizer, max_position_embeddings=2048),
        tokenizer,
        auto="AutoModelForCausalLM",
    )
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    queries, items = pairs()
    expected = []
    for query, item in zip(queries, items, strict=True):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([make_ids(tokenizer, query, item)])).logits[0, -1]
        ids = [token if isinstance(token, int) else ids_of(tokenizer, token)[0] for token in tokens]
        true, *false = (float(logits[token]) for token in ids)
        expected.append(true - sum(false))
    scores = open_model(folder, max_length=2048).score(queries, items)
    np.testing.assert_allclose(scores, expected, atol=2e-4)


@pytest.mark.parametrize("auto", ["AutoModelForCausalLM", "AutoModelForSequenceClassification"])
def test_a_family_by_its_name(tmp_path, auto):
    """`template` names a family where the folder does not, for language models and for classifiers."""
    import transformers

    tokenizer = make.gemma_tokenizer()
    labels = {} if auto == "AutoModelForCausalLM" else {"num_labels": 1}
    folder = make.save(tmp_path / "own", make.config_of("llama", tokenizer, **labels), tokenizer, auto=auto)
    model = getattr(transformers, auto).from_pretrained(folder).eval()
    template = "ctxl-rerank-v2" if auto == "AutoModelForCausalLM" else "nemotron-rerank"
    make_ids = ctxl_ids if auto == "AutoModelForCausalLM" else nemotron_ids
    queries, items = ["why is ice slippery?", " a ", ""], ["Ice melts.", "", "\nlines\n"]
    with torch.inference_mode():
        logits = [
            model(input_ids=torch.tensor([make_ids(tokenizer, query, item)])).logits
            for query, item in zip(queries, items, strict=True)
        ]
    expected = [float(one[0, -1, 0] if one.ndim == 3 else one[0, 0]) for one in logits]
    scores = open_model(folder, template=template).score(queries, items)
    np.testing.assert_allclose(scores, expected, atol=2e-4)


def test_an_instruction_of_a_family(tmp_path):
    name = "ctxl-rerank-v2-instruct-multilingual-1b"
    tokenizer = make.qwen_tokenizer(make.PLAIN_CHAT_TEMPLATE)
    folder = make.save(
        tmp_path / name, make.config_of(**QWEN, tokenizer=tokenizer), tokenizer, auto="AutoModelForCausalLM"
    )
    scorer = open_model(folder, instruction=INSTRUCTION)
    assert scorer.prompt is not None
    (text,) = scorer.prompt.render("Q", "D")
    assert ids_of(tokenizer, text) == ctxl_ids(tokenizer, "Q", "D", INSTRUCTION)
    plain = open_model(folder)
    assert open_model(folder, instruction="").fingerprint == plain.fingerprint != scorer.fingerprint
    long = [tiny.words(seed, 300) for seed in range(2)]
    scores = open_model(folder, max_length=80).score(["how do rivers freeze?"] * 2, long)
    assert np.ptp(scores) > 1e-3  # the query and what follows it are kept, and so is the item's beginning


def test_a_decoder_without_a_padding_token(tmp_path):
    from transformers import AutoModelForSequenceClassification

    tokenizer = make.gemma_tokenizer(pad=False)
    config = make.config_of("llama", tokenizer, num_labels=1)
    folder = make.save(tmp_path / "llama", config, tokenizer, auto="AutoModelForSequenceClassification")
    queries, items = pairs()
    scores = open_model(folder, batch_tokens=500).score(queries, items)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    for query, item, score in zip(queries, items, scores, strict=True):
        (ids,) = tokenizer([query], [item], truncation="longest_first", max_length=make.LENGTH)["input_ids"]
        with torch.inference_mode():
            assert float(model(input_ids=torch.tensor([ids])).logits) == pytest.approx(score, abs=2e-4)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("qwen3 classifier", {"template": "only {query}"}, "`template` must contain {item} exactly once"),
        ("qwen3 classifier", {"template": "{query} {query}\n{item}"}, "`template` must contain {query} exactly once"),
        ("qwen3 classifier", {"template": "qwen3"}, "one of qwen3-reranker, .* got 'qwen3'"),
        ("qwen3 classifier", {"template": "{query}\n{item}\n{document}"}, "got {document} in"),
        ("qwen3 classifier", {"template": "zerank", "instruction": "Find ice"}, "`instruction` must be left out"),
        (
            "qwen3 classifier",
            {"template": "qwen3-reranker", "instruction": "{query}"},
            "`instruction` must not contain",
        ),
        ("qwen3 classifier", {"template": "{query}{item}"}, "Put a line break or a special token between them"),
        ("qwen3 classifier", {"template": "{query}\n{item}", "instruction": "x"}, "only if `template` contains"),
        ("qwen3 classifier", {"template": "{instruction} {query}\n{item}"}, "only if `template` contains"),
        ("llama, item first", {"instruction": "Find ice"}, "no place for an instruction"),
        ("modernbert", {"instruction": "Find ice"}, "`instruction` needs a prompt"),
        ("modernbert", {"true_token": "yes"}, "`true_token` is for language models"),
        ("qwen3 language model", {"false_token": "no"}, "`false_token` needs `true_token`"),
        ("qwen3 language model", {"true_token": "yes and no"}, r"'yes and no' must be one token of .*, got \d"),
        ("qwen3 language model", {"true_token": 10**6}, "1000000 must be one token of .*, got a number"),
        ("qwen3 language model", {"dtype": "int8"}, "'int8' is for encoders"),
        ("modular, mean", {"label": 2}, "`label` must be"),
        ("qwen3 language model", {"max_length": 20}, "`max_length` must be"),
        ("modular, mean", {"max_length": 0}, "`max_length` must be"),
    ],
)
def test_what_cannot_be_applied_is_refused(folders, kind, options, message):
    with pytest.raises(InputError, match=message.replace("{", "\\{").replace("}", "\\}")):
        open_model(folders[kind], **options)


def test_a_language_model_without_a_prompt_is_refused(tmp_path):
    tokenizer = make.qwen_tokenizer(make.PLAIN_CHAT_TEMPLATE)
    folder = make.save(
        tmp_path / "chat", make.config_of(**QWEN, tokenizer=tokenizer), tokenizer, auto="AutoModelForCausalLM"
    )
    with pytest.raises(InputError, match=r"no chat template with the roles 'query' and 'document'.*Give `template`"):
        open_model(folder)
    assert np.isfinite(open_model(folder, template="qwen3-reranker").score(["a"], ["b"])).all()


def test_a_tokenizer_without_the_answers_is_refused(tmp_path):
    tokenizer = tiny.bert_tokenizer()
    folder = make.save(tmp_path / "bert", make.config_of("llama", tokenizer), tokenizer, auto="AutoModelForCausalLM")
    with pytest.raises(InputError, match=r"'yes' must be one token.*`true_token`"):
        open_model(folder, template="{query}\n{item}")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", "[", "modules.json: invalid JSON"),
        ("modules.json", "{}", "must be a JSON list"),
        ("modules.json", '[{"type": "x.Transformer", "path": "../other"}]', "must be in the model's folder"),
        ("modules.json", '[{"type": "x.Pooling", "path": ""}]', "first module must be a Transformer"),
        ("1_LogitScore/config.json", "{}", "`true_token_id` must be a number"),
        ("1_LogitScore/config.json", "[]", "must be a JSON object"),
    ],
)
def test_a_damaged_folder_is_refused_with_the_file(folders, tmp_path, file, content, message):
    folder = tmp_path / "model"
    shutil.copytree(folders["qwen3 language model, saved"], folder)
    (folder / file).write_text(content)
    with pytest.raises(InputError, match=message):
        open_model(folder)


def test_a_token_that_the_tokenizer_does_not_know_is_refused(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"[UNK]": 0, "ice": 1, "melts": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", model_max_length=64)
    folder = make.save(tmp_path / "words", make.config_of("llama", tokenizer), tokenizer, auto="AutoModelForCausalLM")
    with pytest.raises(InputError, match=r"'yes' must be one token of .*, got one that it does not know\."):
        open_model(folder, template="{query} ice {item}")


SERVE = r"Serve it with .*vLLM.*RemoteScorer"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (  # llama-nemotron-rerank-1b-v2
            {
                "model_type": "llama_bidirec",
                "architectures": ["LlamaBidirectionalForSequenceClassification"],
                "auto_map": {"AutoModelForSequenceClassification": "m.LlamaBidirectionalForSequenceClassification"},
            },
            rf"needs the class LlamaBidirectionalForSequenceClassification, .*never executed\. {SERVE}",
        ),
        (
            {"auto_map": {"AutoModel": "m.BidirectionalQwen3"}},
            rf"needs the class BidirectionalQwen3, .*never executed\. {SERVE}",
        ),
        (  # bge-reranker-v2-minicpm-layerwise
            {"model_type": "minicpm", "architectures": ["LayerWiseMiniCPMForCausalLM"]},
            rf"needs the class LayerWiseMiniCPMForCausalLM, .*never executed\. {SERVE}",
        ),
        ({"architectures": ["JinaForRanking"]}, r"listwise reranker \(JinaForRanking\).*scores each pair by itself"),
        (
            {
                "model_type": "qwen3_vl",
                "architectures": ["Qwen3VLForConditionalGeneration"],
                "vision_config": {},
            },
            rf"multimodal model \(Qwen3VLForConditionalGeneration\).*{SERVE}",
        ),
        (
            {"model_type": "t5gemma2", "architectures": ["T5Gemma2ForConditionalGeneration"]},
            rf"sequence-to-sequence model \(T5Gemma2ForConditionalGeneration\).*{SERVE}",
        ),
    ],
)
def test_models_of_other_kinds_are_refused_in_a_sentence(folders, tmp_path, changes, message):
    folder = tmp_path / "model"
    shutil.copytree(folders["qwen3 classifier"], folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(InputError, match=message) as refused:
        open_model(folder)
    assert "\n" not in str(refused.value)


def test_code_that_a_config_names_is_not_needed_where_transformers_has_the_class(folders, tmp_path):
    folder = tmp_path / "zerank-1"  # whose config names a class of its folder that is Qwen3's
    shutil.copytree(folders["qwen3 language model"], folder)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "modeling_zeranker.ZEConfig", "AutoModelForCausalLM": "m.Qwen3ForCausalLM"}
    (folder / "config.json").write_text(json.dumps(config))
    scores = open_model(folder, template="zerank").score(["a"], ["b"])
    np.testing.assert_array_equal(
        scores, open_model(folders["qwen3 language model"], template="zerank").score(["a"], ["b"])
    )


def test_other_weights_than_those_of_transformers_are_code_of_the_folder(folders, tmp_path):
    """jina-reranker-v2 has a class of transformers' name with layers of its own."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "model"
    shutil.copytree(folders["qwen3 classifier"], folder)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForSequenceClassification": "m.Qwen3ForSequenceClassification"}
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    renamed = {name.replace("q_proj", "Wqkv"): tensor for name, tensor in weights.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=f"runs Python code from its folder, .*{SERVE}"):
        open_model(folder)


CODE = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nclass Evil: pass\n"


@pytest.mark.parametrize("way", ["modules.json", "auto_map", "activation"])
def test_no_code_of_a_model_folder_is_run(tmp_path, way):
    source = make.save_modular(tmp_path / "made", pooling="mean", activation=torch.nn.Tanh())
    folder = tmp_path / "evil"
    shutil.copytree(source, folder)
    (folder / "evil.py").write_text(CODE)
    if way == "modules.json":
        modules = json.loads((folder / "modules.json").read_text())
        modules[1]["type"] = "evil.Evil"
        (folder / "modules.json").write_text(json.dumps(modules))
    elif way == "auto_map":
        config = json.loads((folder / "config.json").read_text())
        config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"}}
        (folder / "config.json").write_text(json.dumps(config))
    else:
        path = next(folder.glob("2_Dense*/config.json"))
        path.write_text(json.dumps({**json.loads(path.read_text()), "activation_function": "evil.Evil"}))
    with pytest.raises(InputError, match=r"evil|code"):
        open_model(folder)
    assert not list(folder.rglob("ran"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_padding_free_on_a_gpu_is_padded_on_a_cpu(folders, kind):
    queries, items = pairs()
    expected = open_model(folders[kind]).score(queries, items)
    scores = CrossEncoder(folders[kind], device="cuda").score(queries, items)
    assert np.corrcoef(scores, expected)[0, 1] > 0.98
    np.testing.assert_allclose(scores, expected, atol=0.15 * np.abs(expected).max())
