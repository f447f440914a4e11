"""Everything crossknn raises on purpose.

    CrossKnnError
    ├── InputError        an argument or a record that cannot be used; names the file and line where there is one
    ├── ModelNotFound     a model that is neither a local folder nor reachable by its hub name
    ├── MissingExtra      an optional dependency that is not installed; carries its pip line
    ├── ScorerError       a scorer that returned too few, too many, NaN or infinite scores; names the pair
    │   ├── PartialScores a scorer that failed after some of the pairs; carries their scores
    │   └── TooLate       a scorer whose answer did not come before the search's deadline
    ├── EncoderError      an encoder that returned vectors of the wrong shape or with NaN in them
    ├── EngineError       a cluster whose workers do not start, or are lost again and again
    ├── StoreError        a database of vectors that cannot be reached, or was lost in the middle of a search
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


class PartialScores(ScorerError):
    """A scorer failed after some pairs of a call: the `scores` of `queries[i]` and `items[i]`, and whose they are.

    `Cached` keeps them, so that they are not paid for again. It is the cause of an interrupt that a scorer passes on.
    """

    def __init__(
        self, message: str, fingerprint: str, queries: list[str], items: list[str], scores: list[float]
    ) -> None:
        super().__init__(message)
        self.fingerprint = fingerprint
        self.queries = queries
        self.items = items
        self.scores = scores

    def __reduce__(self) -> tuple[object, ...]:
        """What another process makes the same error of."""
        return type(self), (str(self), self.fingerprint, self.queries, self.items, self.scores)


class TooLate(ScorerError):
    """Scores did not come before the deadline of the search that wanted them; the search ends with what it has."""


class EncoderError(CrossKnnError):
    """An encoder broke its contract."""


class EngineError(CrossKnnError):
    """Workers did not start, or were lost again and again."""


class StoreError(CrossKnnError):
    """A database of vectors cannot be reached, was lost, or no longer has what a search needs; try again."""


class RetrieverError(CrossKnnError):
    """A retriever broke its contract."""


class StrategyError(CrossKnnError):
    """A strategy broke its contract."""
