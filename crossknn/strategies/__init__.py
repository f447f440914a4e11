"""How a search spends its budget. Strategies see rows and numbers, never a model, a text or an id."""
