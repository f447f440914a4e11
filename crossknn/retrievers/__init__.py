"""Retrievers propose rows for a query before the cross-encoder is called."""
