"""Where samples come from: indexed datasets, mixtures and streams."""
