"""The first checks of a request: access, its body, its time limits, and the log."""
