"""Metrics of a run: where they go, and how fast it is."""
