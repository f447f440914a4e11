"""Integrations with other libraries: one module per library, which must be installed to import it."""
