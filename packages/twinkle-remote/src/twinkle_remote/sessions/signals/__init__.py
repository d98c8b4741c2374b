"""Threads that wait for each other while signals come."""
