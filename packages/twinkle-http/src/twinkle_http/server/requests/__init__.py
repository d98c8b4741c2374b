"""Requests, before anybody knows what they ask: who may ask, their bodies, their time, and what is logged."""
