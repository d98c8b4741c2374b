"""A target whose parameters get new memory by a sync, in place of new values."""
