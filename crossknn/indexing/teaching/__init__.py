"""Teaching the dual encoder from cross-encoder scores."""
