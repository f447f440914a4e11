"""LangChain's own tests for retrievers."""

import pytest

pytest.importorskip("langchain_tests", reason="LangChain's tests are not installed: pip install langchain-tests")

from langchain_tests.integration_tests import RetrieversIntegrationTests

from crossknn.integrations.langchain import CrossKnnRetriever
from tests.integrations.world import QUERY, make_searcher

pytestmark = pytest.mark.anyio  # of the asynchronous one


@pytest.fixture
def anyio_backend():
    return "asyncio"


class TestCrossKnnRetriever(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self):
        return CrossKnnRetriever

    @property
    def retriever_constructor_params(self):
        return {"searcher": make_searcher()}

    @property
    def retriever_query_example(self):
        return QUERY
