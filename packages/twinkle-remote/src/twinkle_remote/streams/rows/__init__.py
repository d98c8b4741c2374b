"""Rows of a stream: their positions in the source, their info, the batch that has them."""
