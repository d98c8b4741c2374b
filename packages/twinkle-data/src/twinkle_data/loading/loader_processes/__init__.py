"""Loader processes, which read ahead of the loop."""
