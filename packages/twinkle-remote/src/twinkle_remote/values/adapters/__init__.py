"""Adapters for array libraries; each is imported when the first value of that library is seen."""
