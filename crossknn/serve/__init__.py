"""HTTP service: search, scores and reranking over HTTP, for `crossknn serve`. Needs the extra `serve`."""
