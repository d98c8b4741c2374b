"""The data plane: how values are pickled, cut into chunks and stored."""
