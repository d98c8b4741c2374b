"""Metrics, timelines and lines of progress that a session keeps of its calls."""
