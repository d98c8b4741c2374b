"""HTTP: the components of a session, served to clients and called by them."""
