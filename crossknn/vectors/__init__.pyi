from crossknn.vectors.base import recall_against_exact as recall_against_exact
from crossknn.vectors.exact import ExactSearch as ExactSearch
from crossknn.vectors.faiss import FaissSearch as FaissSearch
from crossknn.vectors.postgres_search import PgVectorSearch as PgVectorSearch
from crossknn.vectors.postgres_table import PgTable as PgTable
from crossknn.vectors.sharded import ShardedSearch as ShardedSearch
from crossknn.vectors.sharded import ray_shards as ray_shards
