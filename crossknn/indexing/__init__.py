"""What is learned offline: which pairs to score, their scores, and item vectors that fit them."""
