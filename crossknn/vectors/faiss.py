"""Approximate top rows by inner product, with FAISS; what it proposes is scored again exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_choice, check_seed
from crossknn._imports import import_extra
from crossknn.errors import InputError
from crossknn.storage.atomic import temporary_path
from crossknn.types import EMPTY_PROPOSAL, Mask, Progress, Proposal, Rows, Scores, Vectors
from crossknn.vectors.base import check_limits, check_queries
from crossknn.vectors.exact import ExactSearch
from crossknn.vectors.ranking import order_rows

if TYPE_CHECKING:
    import torch

KINDS: Final = ("ivf", "hnsw", "flat")
CODES: Final = {"float32": "Flat", "float16": "SQfp16", "int8": "SQ8"}  # FAISS's names
SPARE: Final = {"float32": 1.0, "float16": 1.2, "int8": 2.0}  # candidates scored again for each row that is wanted,
MORE: Final = 64  # and beyond them
FORMAT: Final = "crossknn faiss 2"  # part of the names of kept files: changes with whatever changes their content
ALIGN: Final = 16  # FAISS is many times slower where the dimension is no multiple of it
BLOCK: Final = 16_384  # rows that are added at once
LINKS: Final = 16  # hnsw: of every item, on the lowest of its levels twice as many,
CARE: Final = 64  # candidates for them,
WIDTH: Final = 256  # the least candidates of a search,
PER_ROW: Final = 2  # and how many there are for each row that is wanted
PER_ROOT: Final = 3  # ivf: lists for each unit of the root of the number of items, made in
ITERATIONS: Final = 6  # of k-means, over
SAMPLE: Final = 16  # items for each list,
LISTS: Final = 96  # the fewest that a search looks into,
LEAST: Final = 32_768  # and the fewest vectors,
LOOKED: Final = 24  # how many more for each row that is wanted,
PER_HIDDEN: Final = 2  # and for each that is hidden, since these are often the nearest
# What takes how long, where exact search takes 1 for each item: a candidate of hnsw, a vector of ivf or flat,
COST: Final = {"hnsw": 16.0, "ivf": 0.5, "flat": 0.5}
LISTED: Final = 8.0  # a row that is looked up by itself,
EACH_QUERY: Final = 0.12  # and an item for each further query of an exact search

Answer = tuple[Proposal | None, Scores]  # the best rows, None where exact search is to find them, and products


class FaissSearch:
    """Approximate search over `vectors` (items, dim): fast for many items, and it may miss some.

    FAISS finds candidates among copies of the vectors, and these are scored again with the vectors themselves: only
    rows can be missed, and what is told of a row is what `ExactSearch` tells. Where it is quicker to look at every row
    that is allowed, and where too little was found, that is done.

    vectors   as for `ExactSearch`: used where they lie; or an `ExactSearch`
    kind      "ivf", lists of vectors that lie together; "hnsw", a graph of neighbours: finds more for its time where
              few rows are excluded; "flat": looks at all, and saves memory only
    storage   of the copies: "float32", "float16" or "int8"
    effort    how much is looked at, as a multiple of what is usual: raise it to find more
    seed      of k-means
    folder    keeps what was built, under a name made of the vectors and the settings; what is there is opened, mapped
    progress  called as `progress(step, done, total)` while it is built
    """

    def __init__(
        self,
        vectors: NDArray[Any] | torch.Tensor | ExactSearch,
        *,
        kind: str = "ivf",
        storage: str = "float16",
        effort: float = 1.0,
        seed: int = 0,
        folder: str | Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._faiss = import_extra("faiss", extra="faiss")
        check_choice("kind", kind, KINDS)
        check_choice("storage", storage, CODES)
        check_seed(seed)
        if not isinstance(effort, int | float) or not 0 < effort < np.inf:
            raise InputError(f"effort must be a number above 0. Got {effort!r} instead.")
        self.kind, self.storage, self.effort, self.seed = kind, storage, effort, seed
        self._folder = None if folder is None else Path(folder)
        self._progress = progress
        self._exact = vectors if isinstance(vectors, ExactSearch) else ExactSearch(vectors)
        if not len(self):
            raise InputError("there must be at least one vector. Got none.")
        self.dim = self._exact.dim
        self._index = self._build() if self._folder is None else self._open_or_build(self._folder)

    def beside(self, *columns: NDArray[Any]) -> FaissSearch:
        """The same search where every vector goes on with these columns, each (items, some); built anew."""
        return FaissSearch(
            self._exact.beside(*columns),
            kind=self.kind,
            storage=self.storage,
            effort=self.effort,
            seed=self.seed,
            folder=self._folder,
            progress=self._progress,
        )

    def __len__(self) -> int:
        return len(self._exact)

    def take(self, rows: Rows) -> Vectors:
        return self._exact.take(rows)

    def estimates(self, queries: NDArray[Any]) -> Scores:
        return self._exact.estimates(queries)

    def search(
        self,
        queries: NDArray[Any],
        n: int,
        *,
        exclude: Sequence[Rows] | None = None,
        allowed: Mask | None = None,
    ) -> list[Proposal]:
        return self.search_with_candidates(queries, n, None, exclude=exclude, allowed=allowed)[0]

    def search_with_candidates(
        self,
        queries: NDArray[Any],
        n: int,
        apart: Sequence[Rows] | None,
        *,
        exclude: Sequence[Rows] | None = None,
        allowed: Mask | None = None,
    ) -> tuple[list[Proposal], list[Scores]]:
        """`search` among the rows that are not `apart`, and each query's inner products with those that are."""
        wanted = check_queries(self, queries)
        check_limits(self, len(wanted), allowed=allowed, apart=apart, exclude=exclude)
        nothing = [EMPTY_PROPOSAL.rows] * len(wanted)
        known, hidden = apart or nothing, exclude or nothing
        worth = len(self) * (1 / max(1, len(wanted)) + EACH_QUERY)

        def ask(number: int) -> Answer:
            rows, query = known[number], wanted[number]
            both, mine = np.concatenate([rows, hidden[number]]), worth - LISTED * len(rows)
            found = self._search_one(query, n, both, allowed, mine)
            return found, EMPTY_PROPOSAL.estimates if found is None else self.take(rows) @ query

        answers = self._map(ask, len(wanted))
        left = [number for number, (found, _) in enumerate(answers) if found is None]
        if left:
            mine, others = ([rows[number] for number in left] for rows in (known, hidden))
            rest = self._exact.search_with_candidates(wanted[left], n, mine, exclude=others, allowed=allowed)
            for number, found, products in zip(left, *rest, strict=True):
                answers[number] = found, products
        return [found for found, _ in answers if found is not None], [products for _, products in answers]

    def _map(self, ask: Callable[[int], Answer], queries: int) -> list[Answer]:
        """What `ask` says of each query's number, in as many threads as FAISS would use."""
        count = min(queries, self._faiss.omp_get_max_threads())
        if count < 2:
            return [ask(number) for number in range(queries)]
        with ThreadPoolExecutor(count) as threads:
            return list(threads.map(ask, range(queries)))

    def _search_one(self, query: Scores, n: int, hidden: Rows, allowed: Mask | None, worth: float) -> Proposal | None:
        """The best `n` rows; None where FAISS found too few, or exact search, which takes `worth`, is quicker."""
        free = np.ones(len(self), np.bool_) if allowed is None else np.array(allowed, np.bool_)
        rarity = len(self) / max(1, int(free.sum()))
        free[hidden] = False
        left = int(free.sum())
        if n < 1 or not left:
            return EMPTY_PROPOSAL
        looked = self._looked(n * rarity, len(hidden))
        candidates = min(len(self), int(n * SPARE[self.storage]) + MORE)
        way = self._quickest(looked, candidates, left, worth)
        if way == "exact":
            return None
        if way == "list":
            return self._order(np.flatnonzero(free), query, n)
        settings = self._settings(looked, free if left < len(self) else None)
        rows = self._index.search(self._widen(query[None]), candidates, params=settings)[1][0]
        proposal = self._order(rows[rows >= 0], query, n)
        return proposal if len(proposal) == min(n, left) else None

    def _quickest(self, looked: int, candidates: int, left: int, worth: float) -> str:
        """FAISS, a list of each row that is left, or exact search, which would have to read what "flat" keeps small."""
        costs = {"faiss": COST[self.kind] * looked + LISTED * candidates, "list": LISTED * left, "exact": worth}
        if self.kind == "flat":
            del costs["exact"]
        return min(costs, key=lambda way: costs[way])

    def _order(self, rows: Rows, query: Scores, n: int) -> Proposal:
        return order_rows(rows, self.take(rows) @ query).first(n)

    def _looked(self, n: float, hidden: int) -> int:
        """How many candidates or vectors to look at for the best `n` rows that are not among so many hidden ones."""
        if self.kind == "flat":
            return len(self)
        if self.kind == "hnsw":
            return 1 + int(self.effort * max(WIDTH, PER_ROW * n)) + hidden
        usual = max(LEAST, LISTS * self._list_rows) + LOOKED * n
        return 1 + int(self.effort * usual) + PER_HIDDEN * hidden

    def _settings(self, looked: int, free: Mask | None) -> Any:
        """How FAISS is to look at so many, of those that are `free`."""
        faiss = self._faiss
        only = None if free is None else faiss.IDSelectorBitmap(np.packbits(free, bitorder="little"))
        if self.kind == "hnsw":
            return faiss.SearchParametersHNSW(efSearch=looked, sel=only)
        if self.kind == "ivf":
            return faiss.SearchParametersIVF(nprobe=1 + int(looked / self._list_rows), sel=only)
        return faiss.SearchParameters(sel=only)

    def _open_or_build(self, folder: Path) -> Any:
        path = folder / f"{self._fingerprint()}.faiss"
        if path.is_file():
            return self._open(path)
        folder.mkdir(parents=True, exist_ok=True)
        index, fresh = self._build(), temporary_path(path)
        try:
            self._faiss.write_index(index, str(fresh))
            fresh.replace(path)
        finally:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)
        return self._open(path)

    def _open(self, path: Path) -> Any:
        try:
            return self._faiss.read_index(str(path), self._faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise InputError(f"{path}: is no file that FAISS can read. Delete it, and it is built again.") from error

    def _fingerprint(self) -> str:
        """A hash of the vectors and of the settings that what is built depends on."""
        digest = blake2b(digest_size=16)
        digest.update(f"{FORMAT} {self.kind} {self.storage} {self.seed} {len(self)} {self.dim}".encode())
        for block in self._blocks():
            digest.update(block.tobytes())
        return digest.hexdigest()

    def _build(self) -> Any:
        faiss, length = self._faiss, self._longest()
        index = faiss.index_factory(self._width, self._recipe, faiss.METRIC_INNER_PRODUCT)
        if self.kind == "hnsw":
            index.hnsw.efConstruction = CARE
        if self.kind == "ivf":
            index.cp.niter, index.cp.seed = ITERATIONS, self.seed
            index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 1, SAMPLE
        rng, many = np.random.default_rng(self.seed), min(len(self), SAMPLE * max(self._lists, 1_000))
        index.train(self._widen(self.take(np.sort(rng.choice(len(self), many, replace=False))), length))
        for block in self._blocks():
            index.add(self._widen(block, length))
            if self._progress is not None:
                self._progress("index vectors", index.ntotal, len(self))
        return index

    @property
    def _recipe(self) -> str:
        """As FAISS writes it."""
        code = CODES[self.storage]
        return {"flat": code, "hnsw": f"HNSW{LINKS}_{code}", "ivf": f"IVF{self._lists},{code}"}[self.kind]

    @property
    def _lists(self) -> int:
        return min(len(self), int(PER_ROOT * len(self) ** 0.5))

    @property
    def _list_rows(self) -> float:
        """Items in a list, on average."""
        return len(self) / self._lists

    @property
    def _width(self) -> int:
        """The dimension in FAISS, with room for a length."""
        return -(-(self.dim + 1) // ALIGN) * ALIGN

    def _widen(self, vectors: Vectors, length: float | None = None) -> Vectors:
        """As FAISS has them: with zeros behind them and, for lists, a number that makes all of them equally long.

        Vectors of equal length that lie together have similar inner products with every query, whose number is 0. A
        graph finds more without it: there the long vectors, which are often wanted, are linked from everywhere.
        """
        wide = np.zeros((len(vectors), self._width), np.float32)
        wide[:, : self.dim] = vectors
        if self.kind == "ivf" and length is not None:
            wide[:, self.dim] = np.sqrt(np.maximum(length**2 - np.einsum("ij,ij->i", vectors, vectors), 0))
        return wide

    def _longest(self) -> float:
        """The largest length of a vector; an error where one is not finite."""
        longest = float(np.max([np.linalg.norm(block, axis=1).max() for block in self._blocks()]))
        if not np.isfinite(longest):
            raise InputError("the vectors hold NaN or infinity.")
        return longest

    def _blocks(self) -> Iterator[Vectors]:
        for start in range(0, len(self), BLOCK):
            yield self.take(np.arange(start, min(start + BLOCK, len(self))))
