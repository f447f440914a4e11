"""Offline indexing: sampled cross-encoder scores, and the item vectors and priors fitted to them."""

from crossknn._imports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
