from crossknn.stores.base import ProposedRowsSearch as ProposedRowsSearch
from crossknn.stores.base import StoreSearch as StoreSearch
from crossknn.stores.qdrant import QdrantStore as QdrantStore
