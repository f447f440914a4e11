from crossknn.stores.base import ProposedRowsSearch as ProposedRowsSearch
from crossknn.stores.base import StoreSearch as StoreSearch
from crossknn.stores.elastic import ElasticStore as ElasticStore
from crossknn.stores.importing import import_store as import_store
from crossknn.stores.lance import LanceStore as LanceStore
from crossknn.stores.qdrant import QdrantStore as QdrantStore
from crossknn.stores.urls import open_store as open_store
