"""Streams: the rows of a source go through remote stages, ahead of the loop that uses them.

`open_stream.stream` makes a `stream.Stream`, which the loop iterates over. Its engine makes the batches:
`synchronous.SynchronousEngine` by the calls of a hand-written loop, when the loop asks; `ahead.AheadEngine` while the
loop works. Only the latter uses `schedule` (decides which rows begin where), `chunks` (calls the stages for them),
`pump` (the thread of both), and `ranks` (workers that are lost or join). Both read `rows` by `rows.row_source`, and
write what happened to `telemetry.stream_record`.
"""
