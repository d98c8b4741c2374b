"""Runs under a virtual clock: what a stream is to give, for durations that are known."""
