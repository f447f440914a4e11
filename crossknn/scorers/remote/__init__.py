"""Models behind an HTTP server: cross-encoders at a rerank endpoint, language models as judges."""
