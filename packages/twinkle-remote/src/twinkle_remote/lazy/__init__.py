"""Lazy results: what they stand for, how they act as their values, and `get`."""
