"""Ranks that load: the rows of each, and what must be alike on all of them."""
