"""Typed stubs of served classes, for clients that lack the modules of the server."""
