"""Replies of workers on their way, and inputs that calls wait for."""
