"""Cross-encoders behind an HTTP server that speaks a `/rerank` protocol."""
