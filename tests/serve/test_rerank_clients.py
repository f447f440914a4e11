"""Other projects' clients, unchanged, against a service in a process of its own."""

import pytest

from tests.serve.processes import slow_server
from tests.serve.servers import TEXTS, true_score

QUERY = "river ice"
DOCUMENTS = TEXTS[:6]
BEST = sorted(range(len(DOCUMENTS)), key=lambda place: -true_score(QUERY, DOCUMENTS[place]))


@pytest.fixture(scope="module")
def url():
    with slow_server(api_key="secret") as server:
        yield server.url


def places(results):
    """The places of ranked documents, after a check that they have probabilities in descending order."""
    scores = [one["relevance_score"] for one in results]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    return [one["index"] for one in results]


@pytest.mark.parametrize(("client", "version"), [("Client", "1"), ("ClientV2", "2")])
def test_the_sdk_of_cohere(url, client, version):
    cohere = pytest.importorskip("cohere")
    answer = getattr(cohere, client)("secret", base_url=url).rerank(
        model="any", query=QUERY, documents=DOCUMENTS, top_n=3
    )
    assert places([one.model_dump() for one in answer.results]) == BEST[:3]
    assert answer.meta.api_version.version == version
    assert answer.meta.billed_units.search_units == 1
    more = getattr(cohere, client)("secret", base_url=url).rerank(model="any", query=QUERY, documents=TEXTS[:201])
    assert more.meta.billed_units.search_units == 3


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("cohere/any", "/v2/rerank"),
        ("jina_ai/any", "/v1/rerank"),
        ("infinity/any", ""),
        ("hosted_vllm/any", ""),
        ("huggingface/any", ""),  # text-embeddings-inference
    ],
)
def test_litellm(url, model, path, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it loads prices from the network otherwise
    litellm = pytest.importorskip("litellm")
    options = {"model": model, "api_base": f"{url}{path}", "api_key": "secret"}
    answer = litellm.rerank(query=QUERY, documents=DOCUMENTS, top_n=3, return_documents=False, **options)
    assert places(answer.results) == BEST[:3]


@pytest.mark.parametrize(
    ("provider", "path"), [("cohere", "/v1/rerank"), ("jina", "/v1/rerank"), ("text-embeddings-inference", "/rerank")]
)
def test_rerankers(url, provider, path):
    pytest.importorskip("rerankers")
    from rerankers.models.api_rankers import APIRanker

    ranked = APIRanker("any", "secret", provider, url=f"{url}{path}").rank(QUERY, DOCUMENTS)
    assert [one.document.doc_id for one in ranked.results] == BEST


def test_the_postprocessor_of_llama_index_for_text_embeddings_inference(url):
    tei = pytest.importorskip("llama_index.postprocessor.tei_rerank")
    from llama_index.core.schema import NodeWithScore, TextNode

    nodes = [NodeWithScore(node=TextNode(text=text, id_=str(place))) for place, text in enumerate(DOCUMENTS)]
    postprocessor = tei.TextEmbeddingInference(base_url=url, top_n=3, auth_token="Bearer secret")
    found = postprocessor.postprocess_nodes(nodes, query_str=QUERY)
    assert [int(one.node.node_id) for one in found] == BEST[:3]
