"""A model over many processes: the layout, how it is divided, and sums over its shards."""
