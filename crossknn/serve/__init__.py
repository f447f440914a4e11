"""Search and scores over HTTP: `crossknn serve`. Needs the extra `serve`."""
