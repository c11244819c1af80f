"""Figures on held-out questions, the systems that are compared, and the report."""
