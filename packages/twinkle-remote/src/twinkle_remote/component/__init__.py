"""A class that lives on workers: its decorators, its handle, and where it is created."""
