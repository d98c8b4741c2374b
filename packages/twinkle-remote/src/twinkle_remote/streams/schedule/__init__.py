"""The schedule of a stream: a state machine of events, without threads, processes or clocks."""
