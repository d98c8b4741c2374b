"""A call in flight: its replies, its deadline, its failures, and who waits for whom."""
