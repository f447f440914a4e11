"""Approximate top-k by inner product with FAISS, with exact rescoring of its candidates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_choice, check_number, check_seed
from crossknn._imports import import_extra
from crossknn._threads import map_in_threads
from crossknn.errors import InputError
from crossknn.storage.atomic import disk_errors, sync, temporary_path
from crossknn.types import EMPTY_PROPOSAL, Mask, Progress, Proposal, Rows, Scores, Vectors
from crossknn.vectors.base import BaseSearch, Found, RowLists
from crossknn.vectors.exact import ExactSearch
from crossknn.vectors.ranking import order_rows

if TYPE_CHECKING:
    import torch

KINDS: Final = ("ivf", "hnsw", "flat")
CODES: Final = {"float32": "Flat", "float16": "SQfp16", "int8": "SQ8"}  # FAISS's names
# Candidates rescored for n rows: n × RESCORE_RATIO + RESCORE_MARGIN.
RESCORE_RATIO: Final = {"float32": 1.0, "float16": 1.2, "int8": 2.0}
RESCORE_MARGIN: Final = 64
FORMAT: Final = "crossknn faiss 2"  # part of the file names' hash: changes with whatever changes the files' content
DIM_MULTIPLE: Final = 16  # FAISS is many times slower where the dimension is not a multiple of it
ADD_ROWS: Final = 16_384  # rows added to the index at once

HNSW_LINKS: Final = 16  # M: per item, twice as many on the lowest level
HNSW_EF_CONSTRUCTION: Final = 64
HNSW_MIN_EF: Final = 256  # efSearch, or
HNSW_EF_PER_ROW: Final = 2  # this many times n, where that is more

IVF_LISTS_PER_ROOT: Final = 3  # lists: this many times the square root of the number of items
IVF_KMEANS_ITERATIONS: Final = 6
IVF_TRAIN_PER_LIST: Final = 16  # items that k-means sees
# Vectors scanned by a search: at least IVF_MIN_LISTS lists and IVF_MIN_SCANNED vectors, plus some for each row to
# find, plus some for each excluded row, since these are often the nearest.
IVF_MIN_LISTS: Final = 96
IVF_MIN_SCANNED: Final = 32_768
IVF_SCANNED_PER_ROW: Final = 24
IVF_SCANNED_PER_EXCLUDED: Final = 2

# Cost model, in units of exact search's time per item for a single query.
SCAN_COST: Final = {"hnsw": 16.0, "ivf": 0.5, "flat": 0.5}  # a candidate of hnsw, a vector of ivf or flat
TAKE_COST: Final = 8.0  # a row looked up by itself
EXTRA_QUERY_COST: Final = 0.12  # an item, for each further query of one exact search


class FaissSearch(BaseSearch):
    """Approximate search: fast for many items, with a recall that may be below 1.

    FAISS finds candidates among compressed copies of the vectors, which are rescored with the vectors themselves: rows
    can be missed, but estimates equal those of `ExactSearch`. Exhaustive search takes over where it is faster, and
    where FAISS found too few rows.

    Args:
        vectors: As for `ExactSearch`, not copied; or an `ExactSearch`.
        kind: "ivf" (inverted lists), "hnsw" (a neighbor graph: higher recall for its time where few rows are
            excluded) or "flat" (scans all copies: only saves memory).
        storage: Of the copies: "float32", "float16" or "int8".
        effort: How much is scanned, as a multiple of the default: higher finds more.
        seed: Of k-means.
        folder: Where built indexes are saved, named by a hash of vectors and settings, and opened memory-mapped.
        progress: Called as `progress(step, done, total)` during the build.
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
        check_number("effort", effort)
        self.kind, self.storage, self.effort, self.seed = kind, storage, effort, seed
        self._folder = None if folder is None else Path(folder)
        self._progress = progress
        self._exact = vectors if isinstance(vectors, ExactSearch) else ExactSearch(vectors)
        if not len(self):
            raise InputError("`vectors` must hold at least one vector, got none.")
        self.dim = self._exact.dim
        self._padded_dim = -(-(self.dim + 1) // DIM_MULTIPLE) * DIM_MULTIPLE  # in FAISS: with one more, rounded up
        self._lists = min(len(self), int(IVF_LISTS_PER_ROOT * len(self) ** 0.5))
        self._list_rows = len(self) / self._lists  # the mean number of items in a list
        self._index = self._build() if self._folder is None else self._open_or_build(self._folder)

    def with_columns(self, *columns: NDArray[Any]) -> FaissSearch:
        """A new index of the vectors with columns, each (items, width), appended to every vector."""
        settings: dict[str, Any] = {name: getattr(self, name) for name in ("kind", "storage", "effort", "seed")}
        exact = self._exact.with_columns(*columns)
        return FaissSearch(exact, **settings, folder=self._folder, progress=self._progress)

    def __len__(self) -> int:
        return len(self._exact)

    def take(self, rows: Rows) -> Vectors:
        return self._exact.take(rows)

    def estimates(self, queries: NDArray[Any]) -> Scores:
        return self._exact.estimates(queries)

    def _search(self, queries: Vectors, n: int, candidates: RowLists, exclude: RowLists, allowed: Mask | None) -> Found:
        exact_cost = len(self) * (1 / max(1, len(queries)) + EXTRA_QUERY_COST)

        def search_one(query: int) -> tuple[Proposal | None, Scores]:
            rows, vector = candidates[query], queries[query]
            hidden = np.concatenate([rows, exclude[query]])
            found = self._search_one(vector, n, hidden, allowed, exact_cost - TAKE_COST * len(rows))
            return found, EMPTY_PROPOSAL.estimates if found is None else self.take(rows) @ vector

        results = map_in_threads(search_one, range(len(queries)), self._faiss.omp_get_max_threads())
        left = [query for query, (found, _) in enumerate(results) if found is None]
        if left:
            mine, hidden = ([rows[query] for query in left] for rows in (candidates, exclude))
            rest = self._exact.search_with_candidates(queries[left], n, mine, exclude=hidden, allowed=allowed)
            for query, found, products in zip(left, *rest, strict=True):
                results[query] = found, products
        return [found for found, _ in results if found is not None], [products for _, products in results]

    def _search_one(
        self, query: Scores, n: int, exclude: Rows, allowed: Mask | None, exact_cost: float
    ) -> Proposal | None:
        """The best `n` rows; None where FAISS found too few of them, or exact search is faster."""
        eligible = np.ones(len(self), np.bool_) if allowed is None else np.array(allowed, np.bool_)
        rarity = len(self) / max(1, int(eligible.sum()))
        eligible[exclude] = False
        left = int(eligible.sum())
        if n < 1 or not left:
            return EMPTY_PROPOSAL
        scanned = self._scanned(n * rarity, len(exclude))
        candidates = min(len(self), int(n * RESCORE_RATIO[self.storage]) + RESCORE_MARGIN)
        method = self._fastest(scanned, candidates, left, exact_cost)
        if method == "exact":
            return None
        if method == "rescore":
            return self._rescore(np.flatnonzero(eligible), query, n)
        parameters = self._parameters(scanned, eligible if left < len(self) else None)
        rows = self._index.search(self._pad(query[None]), candidates, params=parameters)[1][0]
        proposal = self._rescore(rows[rows >= 0], query, n)
        return proposal if len(proposal) == min(n, left) else None

    def _fastest(self, scanned: int, candidates: int, left: int, exact_cost: float) -> str:
        """The cheapest of FAISS, scoring all eligible rows, and exact search (whose memory "flat" saves)."""
        costs = {"faiss": SCAN_COST[self.kind] * scanned + TAKE_COST * candidates, "rescore": TAKE_COST * left}
        if self.kind != "flat":
            costs["exact"] = exact_cost
        return min(costs, key=lambda method: costs[method])

    def _rescore(self, rows: Rows, query: Scores, n: int) -> Proposal:
        return order_rows(rows, self.take(rows) @ query).first(n)

    def _scanned(self, n: float, excluded: int) -> int:
        """How many candidates (hnsw) or vectors a search for `n` rows scans."""
        if self.kind == "flat":
            return len(self)
        if self.kind == "hnsw":
            return 1 + int(self.effort * max(HNSW_MIN_EF, HNSW_EF_PER_ROW * n)) + excluded
        usual = max(IVF_MIN_SCANNED, IVF_MIN_LISTS * self._list_rows) + IVF_SCANNED_PER_ROW * n
        return 1 + int(self.effort * usual) + IVF_SCANNED_PER_EXCLUDED * excluded

    def _parameters(self, scanned: int, eligible: Mask | None) -> Any:
        faiss = self._faiss
        selector = None if eligible is None else faiss.IDSelectorBitmap(np.packbits(eligible, bitorder="little"))
        if self.kind == "hnsw":
            return faiss.SearchParametersHNSW(efSearch=scanned, sel=selector)
        if self.kind == "ivf":
            return faiss.SearchParametersIVF(nprobe=1 + int(scanned / self._list_rows), sel=selector)
        return faiss.SearchParameters(sel=selector)

    def _open_or_build(self, folder: Path) -> Any:
        """The index in the folder whose content has the digest in its name; a new one if there is none."""
        name = self._fingerprint()
        with disk_errors(folder, "the FAISS index cannot be kept"):
            folder.mkdir(parents=True, exist_ok=True)
            intact = None
            for path in sorted(folder.glob(f"{name}-*.faiss")):
                if path.stem == f"{name}-{_hash(path)}":
                    intact = path
                else:
                    path.unlink(missing_ok=True)
            path = intact or self._save(folder, name)
        try:
            return self._faiss.read_index(str(path), self._faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise InputError(f"{path}: FAISS cannot read this file. Delete it to build it again.") from error

    def _save(self, folder: Path, name: str) -> Path:
        """Build the index and write it to the folder."""
        index, temporary = self._build(), temporary_path(folder / name)
        try:
            self._faiss.write_index(index, str(temporary))
            path = folder / f"{name}-{_hash(temporary)}.faiss"
            sync(temporary)
            return temporary.replace(path)
        except RuntimeError as error:  # FAISS's own, which has no number of the system's
            raise InputError(f"{folder}: the FAISS index cannot be written ({str(error).strip()[-120:]}).") from error
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _fingerprint(self) -> str:
        """A hash of the vectors and of the settings that the built index depends on."""
        digest = blake2b(digest_size=16)
        digest.update(f"{FORMAT} {self.kind} {self.storage} {self.seed} {len(self)} {self.dim}".encode())
        for block in self._blocks():
            digest.update(block.tobytes())
        return digest.hexdigest()

    def _build(self) -> Any:
        faiss, max_norm = self._faiss, self._max_norm()
        code = CODES[self.storage]
        factory = {"flat": code, "hnsw": f"HNSW{HNSW_LINKS}_{code}", "ivf": f"IVF{self._lists},{code}"}[self.kind]
        index = faiss.index_factory(self._padded_dim, factory, faiss.METRIC_INNER_PRODUCT)
        if self.kind == "hnsw":
            index.hnsw.efConstruction = HNSW_EF_CONSTRUCTION
        if self.kind == "ivf":
            index.cp.niter, index.cp.seed = IVF_KMEANS_ITERATIONS, self.seed
            index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 1, IVF_TRAIN_PER_LIST
        rng, size = np.random.default_rng(self.seed), min(len(self), IVF_TRAIN_PER_LIST * max(self._lists, 1_000))
        index.train(self._pad(self.take(np.sort(rng.choice(len(self), size, replace=False))), max_norm))
        for block in self._blocks():
            index.add(self._pad(block, max_norm))
            if self._progress is not None:
                self._progress("index vectors", index.ntotal, len(self))
        return index

    def _pad(self, vectors: Vectors, max_norm: float | None = None) -> Vectors:
        """Vectors padded with zeros; for lists, one more dimension gives all items the same norm.

        Neighboring vectors of equal norm have similar inner products with every query, whose extra dimension is 0.
        A graph has a higher recall without it: there the long vectors, often the best, are linked from everywhere.
        """
        padded = np.zeros((len(vectors), self._padded_dim), np.float32)
        padded[:, : self.dim] = vectors
        if self.kind == "ivf" and max_norm is not None:
            padded[:, self.dim] = np.sqrt(np.maximum(max_norm**2 - np.einsum("ij,ij->i", vectors, vectors), 0))
        return padded

    def _max_norm(self) -> float:
        largest = float(np.max([np.linalg.norm(block, axis=1).max() for block in self._blocks()]))
        if not np.isfinite(largest):
            raise InputError("`vectors` must be finite, but they hold NaN or infinity.")
        return largest

    def _blocks(self) -> Iterator[Vectors]:
        for start in range(0, len(self), ADD_ROWS):
            yield self.take(np.arange(start, min(start + ADD_ROWS, len(self))))


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, lambda: blake2b(digest_size=8)).hexdigest()
