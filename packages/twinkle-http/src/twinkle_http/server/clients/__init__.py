"""Clients: what each of them holds, its requests, and its updates."""
