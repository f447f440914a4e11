"""The report of a comparison: terminal table, figures and HTML page."""
