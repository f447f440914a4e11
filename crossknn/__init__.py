"""k-nearest-neighbor search when the similarity is a cross-encoder.

Public names are imported on first use, so that `import crossknn` is fast and never imports torch.
`__init__.pyi` lists them; other names are public in their subpackages.
"""

from crossknn._imports import lazy_exports

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
