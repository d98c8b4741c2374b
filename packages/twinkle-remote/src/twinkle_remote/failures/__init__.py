"""Exceptions that travel: captured on a worker, raised again on the caller."""
