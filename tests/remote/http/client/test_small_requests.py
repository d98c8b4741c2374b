"""A request is one write, and its answer has a time of its own, longer than that of a connect."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from twinkle_remote.http.client.small_requests import SmallRequests

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"


def test_an_answer_may_take_longer_than_a_connect() -> None:
    requests: list[bytes] = []

    def serve(server: socket.socket) -> None:
        near, _ = server.accept()
        with near:
            near.settimeout(30.0)
            while request := near.recv(65536):
                requests.append(request)
                time.sleep(0.6)
                near.sendall(ANSWER)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        port = server.getsockname()[1]
        small = SmallRequests("127.0.0.1", port, None)
        for _ in range(2):
            status, headers, body = small.post("/path", b"body", {"twinkle-request": "1"}, 0.2, 30.0)
            assert (status, headers["content-length"], body) == (200, "5", b"hello")
        with pytest.raises(ValueError, match="Invalid header value"):
            small.post("/path", b"body", {"twinkle-request": "1\r\nhost: other"}, 30.0, 30.0)
        small.close()
    head = f"POST /path HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\ncontent-length: 4\r\ntwinkle-request: 1\r\n\r\nbody"
    assert requests == [head.encode()] * 2
