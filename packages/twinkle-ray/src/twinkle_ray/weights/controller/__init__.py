"""The driver's part of a sync: it plans, and runs each step on both sides."""
