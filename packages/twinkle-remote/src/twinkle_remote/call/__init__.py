"""The way of a call: dispatch, arguments, the tasks that are sent, and collect."""
