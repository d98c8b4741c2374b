"""The server's side: the components of a session, for clients that hold a token."""
