"""Lazy results: what they stand for, tables of them, how they act as their values, and `get`."""
