from crossknn.scorers.base import function_scorer as function_scorer
from crossknn.scorers.base import score_pairs as score_pairs
from crossknn.scorers.cached import Cached as Cached
from crossknn.scorers.cross_encoder import CrossEncoder as CrossEncoder
from crossknn.scorers.emb_cross_encoder import EmbCrossEncoder as EmbCrossEncoder
from crossknn.scorers.remote.logprob import LogprobScorer as LogprobScorer
from crossknn.scorers.remote.scorer import RemoteScorer as RemoteScorer
