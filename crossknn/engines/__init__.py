"""Where the models of a build run: in this process, or on the machines of a Ray cluster."""

from crossknn._imports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
