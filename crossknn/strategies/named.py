"""Every strategy by the name that commands, requests and files give it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from crossknn.strategies.axn import Axn
from crossknn.strategies.cur import AdaCur, AnnCur
from crossknn.strategies.exact import Exact
from crossknn.strategies.gar import Gar
from crossknn.strategies.posterior import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.strategies.tour import Tour

STRATEGIES: Final[Mapping[str, Any]] = {
    "posterior": Posterior,
    "rerank": Rerank,
    "axn": Axn,
    "anncur": AnnCur,
    "adacur": AdaCur,
    "tour": Tour,
    "gar": Gar,
    "exact": Exact,
}
