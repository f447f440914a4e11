"""Property tests from the OpenAPI schema: no request breaks the server, and responses match the schema."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from crossknn.serve.settings import Limits
from tests.serve.servers import opened, serving

schemathesis = pytest.importorskip("schemathesis")
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
PATHS = {
    "POST": ["/search", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"],
    "GET": ["/healthz", "/readyz", "/info", "/metrics"],
}


@pytest.fixture(scope="module")
def api():
    with opened(limits=Limits(budget=20, deadline=2.0)) as service, serving(service) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


def test_every_path_is_tested(api):
    found = {(method.upper(), path) for path in api for method in api[path]}
    assert found == {(method, path) for method, paths in PATHS.items() for path in paths}


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        *(("POST", path, kind) for path in PATHS["POST"] for kind in ("positive", "negative")),
        *(("GET", path, "positive") for path in PATHS["GET"]),  # without parameters
    ],
)
def test_generated_requests_are_answered_or_rejected(api, method, path, kind):
    mode = schemathesis.GenerationMode(kind)
    statuses = set()

    @settings(
        max_examples=30,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=api[path][method].as_strategy(generation_mode=mode))
    def send(case):
        response = case.call()
        case.validate_response(response, checks=CHECKS)
        statuses.add(response.status_code)

    send()
    assert 200 in statuses if kind == "positive" else statuses <= {400, 413, 422, 200}
