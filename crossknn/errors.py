"""Everything crossknn raises on purpose.

    CrossKnnError
    ├── InputError        an argument or a record that cannot be used; names the file and line where there is one
    ├── ModelNotFound     a model that is neither a local folder nor reachable by its hub name
    ├── MissingExtra      an optional dependency that is not installed; carries its pip line
    ├── ScorerError       a scorer that returned too few, too many, NaN or infinite scores; names the pair
    ├── EncoderError      an encoder that returned vectors of the wrong shape or with NaN in them
    ├── RetrieverError    a retriever that proposed rows that do not exist, twice, or outside the filter
    └── StrategyError     a strategy that asked for a row twice, outside the filter, or past its budget

`InputError` is also a `ValueError` and `MissingExtra` an `ImportError`, so that generic handlers work.
"""


class CrossKnnError(Exception):
    """Base of every error that crossknn raises on purpose."""


class InputError(CrossKnnError, ValueError):
    """An argument or a record that cannot be used."""


class ModelNotFound(CrossKnnError):
    """A model that is neither a local folder nor reachable by its hub name."""


class MissingExtra(CrossKnnError, ImportError):
    """An optional dependency that is not installed."""


class ScorerError(CrossKnnError):
    """A scorer broke its contract; the message names the query and the item."""


class EncoderError(CrossKnnError):
    """An encoder broke its contract."""


class RetrieverError(CrossKnnError):
    """A retriever broke its contract."""


class StrategyError(CrossKnnError):
    """A strategy broke its contract."""
