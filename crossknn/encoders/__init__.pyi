from crossknn.encoders.base import function_encoder as function_encoder
from crossknn.encoders.item_encoding import encode_items as encode_items
from crossknn.encoders.precomputed import PrecomputedEncoder as PrecomputedEncoder
from crossknn.encoders.precomputed import load_vectors as load_vectors
from crossknn.encoders.sentence import SentenceEncoder as SentenceEncoder
