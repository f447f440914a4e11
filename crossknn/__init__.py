"""k-nearest-neighbour search when the similarity is a cross-encoder.

The public names are imported on first use, so that `import crossknn` is fast and never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from crossknn.encoders.corpus import encode_items as encode_items
    from crossknn.encoders.function import function_encoder as function_encoder
    from crossknn.encoders.precomputed import PrecomputedEncoder as PrecomputedEncoder
    from crossknn.encoders.precomputed import load_vectors as load_vectors
    from crossknn.encoders.sentence import SentenceEncoder as SentenceEncoder
    from crossknn.engines.ray import RayEngine as RayEngine
    from crossknn.errors import CrossKnnError as CrossKnnError
    from crossknn.errors import EncoderError as EncoderError
    from crossknn.errors import EngineError as EngineError
    from crossknn.errors import InputError as InputError
    from crossknn.errors import MissingExtra as MissingExtra
    from crossknn.errors import ModelNotFound as ModelNotFound
    from crossknn.errors import PartialScores as PartialScores
    from crossknn.errors import RetrieverError as RetrieverError
    from crossknn.errors import ScorerError as ScorerError
    from crossknn.errors import StoreError as StoreError
    from crossknn.errors import StrategyError as StrategyError
    from crossknn.errors import TooLate as TooLate
    from crossknn.evaluate.compare import Contender as Contender
    from crossknn.evaluate.compare import compare as compare
    from crossknn.evaluate.compare import exact_truth as exact_truth
    from crossknn.evaluate.comparison import Comparison as Comparison
    from crossknn.evaluate.datasets import Dataset as Dataset
    from crossknn.evaluate.report import write_report as write_report
    from crossknn.evaluate.truth import exact_scores as exact_scores
    from crossknn.hits import Hit as Hit
    from crossknn.hits import Hits as Hits
    from crossknn.index import Index as Index
    from crossknn.indexing.building import BuildReport as BuildReport
    from crossknn.indexing.cur import Cur as Cur
    from crossknn.indexing.distill import Distillation as Distillation
    from crossknn.indexing.distill import distill as distill
    from crossknn.indexing.inductive import Inductive as Inductive
    from crossknn.indexing.sampling import PerItem as PerItem
    from crossknn.indexing.sampling import PerQuery as PerQuery
    from crossknn.indexing.transductive import Transductive as Transductive
    from crossknn.items import Items as Items
    from crossknn.normalization import Normalization as Normalization
    from crossknn.planner import BuildPlan as BuildPlan
    from crossknn.planner import Cost as Cost
    from crossknn.planner import plan_build as plan_build
    from crossknn.retrievers.bm25 import Bm25 as Bm25
    from crossknn.retrievers.dense import Dense as Dense
    from crossknn.retrievers.fused import Fused as Fused
    from crossknn.retrievers.simple import Given as Given
    from crossknn.retrievers.simple import Random as Random
    from crossknn.retrievers.tfidf import TfIdf as TfIdf
    from crossknn.scorers.cached import Cached as Cached
    from crossknn.scorers.checked import score_pairs as score_pairs
    from crossknn.scorers.cross_encoder import CrossEncoder as CrossEncoder
    from crossknn.scorers.emb_cross_encoder import EmbCrossEncoder as EmbCrossEncoder
    from crossknn.scorers.function import function_scorer as function_scorer
    from crossknn.scorers.remote import RemoteScorer as RemoteScorer
    from crossknn.searcher import Searcher as Searcher
    from crossknn.strategies.axn import Axn as Axn
    from crossknn.strategies.base import Space as Space
    from crossknn.strategies.base import Strategy as Strategy
    from crossknn.strategies.cur import AdaCur as AdaCur
    from crossknn.strategies.cur import AnnCur as AnnCur
    from crossknn.strategies.exact import Exact as Exact
    from crossknn.strategies.gar import Gar as Gar
    from crossknn.strategies.posterior import Posterior as Posterior
    from crossknn.strategies.rerank import Rerank as Rerank
    from crossknn.strategies.tour import Tour as Tour
    from crossknn.types import Encoder as Encoder
    from crossknn.types import Engine as Engine
    from crossknn.types import Proposal as Proposal
    from crossknn.types import Retriever as Retriever
    from crossknn.types import Scorer as Scorer
    from crossknn.types import SharedScorer as SharedScorer
    from crossknn.types import VectorSearch as VectorSearch
    from crossknn.vectors.exact import ExactSearch as ExactSearch
    from crossknn.vectors.faiss import FaissSearch as FaissSearch
    from crossknn.vectors.pg_table import PgTable as PgTable
    from crossknn.vectors.pgvector import PgVectorSearch as PgVectorSearch
    from crossknn.vectors.ray_shards import ray_shards as ray_shards
    from crossknn.vectors.recall import recall_against_exact as recall_against_exact
    from crossknn.vectors.sharded import ShardedSearch as ShardedSearch

_HOMES = {
    "encode_items": "crossknn.encoders.corpus",
    "function_encoder": "crossknn.encoders.function",
    "PrecomputedEncoder": "crossknn.encoders.precomputed",
    "load_vectors": "crossknn.encoders.precomputed",
    "SentenceEncoder": "crossknn.encoders.sentence",
    "RayEngine": "crossknn.engines.ray",
    "CrossKnnError": "crossknn.errors",
    "EncoderError": "crossknn.errors",
    "EngineError": "crossknn.errors",
    "InputError": "crossknn.errors",
    "MissingExtra": "crossknn.errors",
    "ModelNotFound": "crossknn.errors",
    "PartialScores": "crossknn.errors",
    "RetrieverError": "crossknn.errors",
    "ScorerError": "crossknn.errors",
    "StoreError": "crossknn.errors",
    "StrategyError": "crossknn.errors",
    "TooLate": "crossknn.errors",
    "Contender": "crossknn.evaluate.compare",
    "compare": "crossknn.evaluate.compare",
    "exact_truth": "crossknn.evaluate.compare",
    "Comparison": "crossknn.evaluate.comparison",
    "Dataset": "crossknn.evaluate.datasets",
    "write_report": "crossknn.evaluate.report",
    "exact_scores": "crossknn.evaluate.truth",
    "Hit": "crossknn.hits",
    "Hits": "crossknn.hits",
    "Index": "crossknn.index",
    "BuildReport": "crossknn.indexing.building",
    "Cur": "crossknn.indexing.cur",
    "Distillation": "crossknn.indexing.distill",
    "distill": "crossknn.indexing.distill",
    "Inductive": "crossknn.indexing.inductive",
    "PerItem": "crossknn.indexing.sampling",
    "PerQuery": "crossknn.indexing.sampling",
    "Transductive": "crossknn.indexing.transductive",
    "Items": "crossknn.items",
    "Normalization": "crossknn.normalization",
    "BuildPlan": "crossknn.planner",
    "Cost": "crossknn.planner",
    "plan_build": "crossknn.planner",
    "Bm25": "crossknn.retrievers.bm25",
    "Dense": "crossknn.retrievers.dense",
    "Fused": "crossknn.retrievers.fused",
    "Given": "crossknn.retrievers.simple",
    "Random": "crossknn.retrievers.simple",
    "TfIdf": "crossknn.retrievers.tfidf",
    "Cached": "crossknn.scorers.cached",
    "score_pairs": "crossknn.scorers.checked",
    "CrossEncoder": "crossknn.scorers.cross_encoder",
    "EmbCrossEncoder": "crossknn.scorers.emb_cross_encoder",
    "function_scorer": "crossknn.scorers.function",
    "RemoteScorer": "crossknn.scorers.remote",
    "Searcher": "crossknn.searcher",
    "Axn": "crossknn.strategies.axn",
    "Space": "crossknn.strategies.base",
    "Strategy": "crossknn.strategies.base",
    "AdaCur": "crossknn.strategies.cur",
    "AnnCur": "crossknn.strategies.cur",
    "Exact": "crossknn.strategies.exact",
    "Gar": "crossknn.strategies.gar",
    "Posterior": "crossknn.strategies.posterior",
    "Rerank": "crossknn.strategies.rerank",
    "Tour": "crossknn.strategies.tour",
    "Encoder": "crossknn.types",
    "Engine": "crossknn.types",
    "Proposal": "crossknn.types",
    "Retriever": "crossknn.types",
    "Scorer": "crossknn.types",
    "SharedScorer": "crossknn.types",
    "VectorSearch": "crossknn.types",
    "ExactSearch": "crossknn.vectors.exact",
    "ShardedSearch": "crossknn.vectors.sharded",
    "ray_shards": "crossknn.vectors.ray_shards",
    "FaissSearch": "crossknn.vectors.faiss",
    "PgTable": "crossknn.vectors.pg_table",
    "PgVectorSearch": "crossknn.vectors.pgvector",
    "recall_against_exact": "crossknn.vectors.recall",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'crossknn' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
