"""Evaluation reports: tables, plots and one HTML page."""
