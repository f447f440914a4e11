"""How a search spends its budget. Strategies see rows and numbers, never a model, a text or an id."""

from crossknn._imports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
