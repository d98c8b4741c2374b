"""The driver of a sync: its steps on both sides, waited for in completion order."""
