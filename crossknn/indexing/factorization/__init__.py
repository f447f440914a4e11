"""Matrix factorization of cross-encoder scores: transductive, inductive and CUR."""
