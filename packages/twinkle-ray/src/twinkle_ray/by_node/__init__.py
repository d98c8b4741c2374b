"""Calls by node: one message for each node, and one answer; in a tree where nodes are many."""
