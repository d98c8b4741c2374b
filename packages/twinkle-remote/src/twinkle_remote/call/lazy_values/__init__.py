"""Lazy results: values that lie on workers, how one waits for them, and how they come here."""
