"""What is learned offline: which pairs to score, their scores, and item vectors that fit them."""

from crossknn._imports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
