"""Backends that come with the protocol: this process, and threads of it."""
