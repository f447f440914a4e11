"""Training of the dual encoder on cross-encoder scores."""
