"""The client's side: a backend whose groups are behind a URL."""
