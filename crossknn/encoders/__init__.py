"""Dual encoders: texts to vectors whose inner product says how close two texts are."""

from crossknn._imports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
