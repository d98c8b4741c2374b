"""The sources of samples: indexed datasets, mixtures, shards and streams."""
