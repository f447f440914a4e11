from crossknn.retrievers.bm25 import Bm25 as Bm25
from crossknn.retrievers.dense import Dense as Dense
from crossknn.retrievers.function import function_retriever as function_retriever
from crossknn.retrievers.fused import Fused as Fused
from crossknn.retrievers.simple import Given as Given
from crossknn.retrievers.simple import Random as Random
from crossknn.retrievers.tfidf import TfIdf as TfIdf
