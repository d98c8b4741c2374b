"""A session from `initialize` to `shutdown`: its backend, its calls in flight, its metrics."""
