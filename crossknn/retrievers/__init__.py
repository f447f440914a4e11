"""Retrievers: proposals of rows for a query before the cross-encoder is called."""

from crossknn._imports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
