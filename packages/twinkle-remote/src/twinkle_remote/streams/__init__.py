"""Streams: the rows of a source go through stages, ahead of the loop that uses them, or at its pace.

`stream.stream` makes a `Stream`, which the loop iterates over. It reads rows by `source`, and gives them to an engine:
`synchronous` makes the calls of the hand-written loop, `ahead` works while the loop does. The latter asks `schedule`, a
pure state machine, which rows begin where, calls `stages` for them, and has `recovery` bring lost workers back. What
happened is in `stats`.
"""
