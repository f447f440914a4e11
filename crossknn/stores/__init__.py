"""Collections of items and vectors in databases and search engines, opened for search where they are."""

from crossknn._imports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
