"""Property tests from the schema of text-embeddings-inference: whatever it allows gets the response it promises."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from crossknn.serve.settings import Limits
from tests.serve.servers import opened, serving

schemathesis = pytest.importorskip("schemathesis")
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance  # noqa: E402

# The route /rerank as its documentation describes it; errors have this server's own form and are left out.
SCHEMA = {
    "openapi": "3.0.3",
    "info": {"title": "Text Embeddings Inference", "version": "1"},
    "paths": {
        "/rerank": {
            "post": {
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/RerankRequest"}}},
                },
                "responses": {
                    "200": {
                        "description": "Ranks",
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/RerankResponse"}}},
                    }
                },
            }
        }
    },
    "components": {
        "schemas": {
            "RerankRequest": {
                "type": "object",
                "required": ["query", "texts"],
                "properties": {
                    "query": {"type": "string"},
                    "texts": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                    "raw_scores": {"type": "boolean", "default": False},
                    "return_text": {"type": "boolean", "default": False},
                    "truncate": {"type": "boolean", "default": False, "nullable": True},
                    "truncation_direction": {"type": "string", "enum": ["Left", "Right"], "default": "Right"},
                },
                "additionalProperties": False,
            },
            "RerankResponse": {"type": "array", "items": {"$ref": "#/components/schemas/Rank"}},
            "Rank": {
                "type": "object",
                "required": ["index", "score"],
                "properties": {
                    "index": {"type": "integer", "minimum": 0},
                    "score": {"type": "number", "format": "float"},
                    "text": {"type": "string", "nullable": True},
                },
            },
        }
    },
}


@pytest.fixture(scope="module")
def url():
    with opened(limits=Limits(body_bytes=10**7)) as service, serving(service) as url:
        yield url


def test_what_the_schema_allows_is_ranked(url):
    api = schemathesis.openapi.from_dict(SCHEMA)

    @settings(
        max_examples=60,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=api["/rerank"]["POST"].as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE))
    def send(case):
        response = case.call(base_url=url)
        assert response.status_code == 200, response.text
        checks = [not_a_server_error, content_type_conformance, response_schema_conformance]
        case.validate_response(response, checks=checks)
        ranked = response.json()
        assert sorted(one["index"] for one in ranked) == list(range(len(case.body["texts"])))
        if case.body.get("return_text"):
            sent = [text.encode(errors="replace").decode() for text in case.body["texts"]]
            assert [one["text"] for one in ranked] == [sent[one["index"]] for one in ranked]

    send()
