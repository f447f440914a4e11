"""Cross-encoder inference: tokenization, batching, padding-free attention, int8."""
