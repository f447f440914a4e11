"""Engines, which run the models of a build: in this process, or on a Ray cluster."""

from crossknn._imports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
