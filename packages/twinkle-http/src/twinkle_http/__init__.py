"""HTTP: the components of a session, served to clients that hold a token, and called by them as on any backend."""

from __future__ import annotations

from twinkle_mesh import load_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from twinkle_http.client.backend import HttpBackend as HttpBackend
    from twinkle_http.gate import Gate as Gate
    from twinkle_http.gate import RefusedError as RefusedError
    from twinkle_http.gate import Tokens as Tokens
    from twinkle_http.gate import check_encrypted as check_encrypted
    from twinkle_http.gate import read_body as read_body
    from twinkle_http.server.serve import HttpServer as HttpServer
else:
    __all__, __getattr__, __dir__ = load_lazily(__name__)

__version__ = "0.1.0"
