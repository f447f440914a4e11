"""Matching records: deduplication and entity matching with a cross-encoder, beyond blocking."""

from crossknn._imports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
