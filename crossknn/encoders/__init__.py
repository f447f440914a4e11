"""Dual encoders: vectors of texts whose inner product estimates similarity."""

from crossknn._imports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
