"""Passages for queries: BM25, dense, remote, and the index with its manifest."""
