"""Two decorators that turn a plain class into a mesh of workers."""
