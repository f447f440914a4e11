"""Scorers: cross-encoders behind one method, `score(queries, items)`."""
