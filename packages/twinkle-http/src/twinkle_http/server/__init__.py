"""The server's side: the components of a session, for clients that hold a token.

Each request passes `requests.guard`. Those of Twinkle's own client go to `clients.client_routes` and its `ClientApi`;
those of other programs to `app` (health, metrics) and to `twinkle_http.plain` (`JsonApi`). Both make calls by
`calls.call_executor`. `serve.serve` puts these parts together, and `server.HttpServer` runs them.
"""
