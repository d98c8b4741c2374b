"""Calls in flight: their queue, their failures, and the end of a session, which waits for them."""
