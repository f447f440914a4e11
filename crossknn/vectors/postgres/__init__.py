"""Vector search in PostgreSQL with pgvector."""
