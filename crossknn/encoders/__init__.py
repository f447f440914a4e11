"""Dual encoders: texts to vectors whose inner product says how close two texts are."""
