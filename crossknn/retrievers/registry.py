"""Registry of retrievers by name, built-in and the caller's own, each fitted once on first use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from crossknn._checks import invalid
from crossknn.errors import InputError
from crossknn.items.items import Items
from crossknn.retrievers.bm25 import Bm25
from crossknn.retrievers.fused import Fused
from crossknn.retrievers.simple import Random
from crossknn.retrievers.tfidf import TfIdf
from crossknn.types import Retriever

BUILT_IN: Final = ("dense", "bm25", "tfidf", "fused", "random")
FUSED: Final = ("dense", "bm25")  # the members of "fused"
_UNFITTED: Final[Mapping[str, Callable[[], Retriever]]] = {"bm25": Bm25, "tfidf": TfIdf, "random": Random}


def check_retriever(value: object) -> Retriever:
    """The retriever, if it is one."""
    if not isinstance(value, Retriever):
        hint = "Wrap a function: function_retriever(…)." if callable(value) else ""
        raise invalid("retrievers", "a list of retrievers such as Bm25()", value, hint)
    return value


class RetrieverRegistry:
    """Retrievers by name. The caller's own take precedence over built-in ones of the same name.

    Args:
        items: The items to fit retrievers on.
        own: The caller's retrievers, not fitted yet.
        fitted: By name, functions that return a fitted retriever, such as "dense", whose encoder and vectors only the
            caller has.
        device: Of torch; BM25 works on a GPU, too.
    """

    def __init__(
        self,
        items: Items,
        *,
        own: Iterable[Retriever] = (),
        fitted: Mapping[str, Callable[[], Retriever]] | None = None,
        device: str | None = None,
    ) -> None:
        self._items = items
        self._device = device
        self._own = {retriever.name: retriever for retriever in map(check_retriever, own)}
        self._make_fitted = dict(fitted or {})
        self.own_names = list(self._own)
        self.ready: dict[str, Retriever] = {}  # those that were requested so far
        self._lock = threading.RLock()

    @property
    def names(self) -> set[str]:
        """All names that `get` accepts."""
        return {*BUILT_IN, *self._own, *self._make_fitted}

    def first_stage(self, *, dense: bool) -> Retriever:
        """The default first stage, fitted.

        The caller's own retriever, or the fusion of several. Those named "dense" and "bm25" only replace the members of
        "fused", which is the default without own ones; without `dense` vectors it is "bm25".
        """
        own = [name for name in self.own_names if name not in FUSED]
        if not own:
            return self.get("fused" if dense or "dense" in self.own_names else "bm25")
        if len(own) == 1:
            return self.get(own[0])
        with self._lock:
            name = "+".join(own)
            if name not in self.ready:
                self.ready[name] = Fused([self.get(one) for one in own], name=name).fit(self._items)
            return self.ready[name]

    def get(self, name: str) -> Retriever:
        """The retriever of this name, fitted."""
        with self._lock:
            if name not in self.ready:
                self.ready[name] = self._place(self._make(name))
            return self.ready[name]

    def _place(self, retriever: Retriever) -> Retriever:
        on_gpu = self._device is not None and self._device.startswith("cuda")
        return retriever.to(str(self._device)) if on_gpu and type(retriever) is Bm25 else retriever

    def _make(self, name: str) -> Retriever:
        if name in self._own:
            return self._own[name].fit(self._items)
        if name in self._make_fitted:
            return self._make_fitted[name]()
        if name == "fused":
            return Fused([self.get(member) for member in FUSED]).fit(self._items)
        if name in _UNFITTED:
            return _UNFITTED[name]().fit(self._items)
        raise InputError(f"there is no retriever named {name!r}; known: {', '.join(sorted(self.names))}.")
