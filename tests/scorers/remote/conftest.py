"""Tests of remote scorers retry at once and know no key or proxy of the machine."""

import pytest

from crossknn.scorers.remote import client


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "INITIAL_BACKOFF", 0.01)
    for name in ("CROSSKNN_API_KEY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
