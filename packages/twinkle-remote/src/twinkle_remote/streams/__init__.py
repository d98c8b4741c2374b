"""Streams: the rows of a source go through remote stages, ahead of the loop that uses them."""
