"""Calls of clients at the server: decoded, made, and their outcomes kept until they are read."""
