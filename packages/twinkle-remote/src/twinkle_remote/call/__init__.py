"""The way of a call: dispatch, arguments, the pending call, collect, and the lazy result."""
