"""The embedded example: a dictionary of WordNet senses, a small cross-encoder trained on it, and the demo."""
