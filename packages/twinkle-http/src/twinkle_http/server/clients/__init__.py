"""Clients: what each of them holds, what it asks for, and what it is told."""
