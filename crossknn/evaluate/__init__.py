"""How much of the exact answer each strategy finds, at what cost: measures, comparison, table, figure and page."""

from crossknn._imports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
