"""Server: the page and its answers, for the browser of whoever started it and nobody else.

It listens on this machine alone. A random token in every path keeps out other programs' pages, and
other users; the name by which it is called, a page that has its own name point here. What is asked
while a simulation goes on ends that simulation: the newest wins.
"""

import json
from errno import EADDRINUSE
from hmac import compare_digest
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from secrets import token_urlsafe
from threading import Lock

from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.reading import UnreadableError, parse_json
from specsim.core.settings import validated
from specsim.show.ui.playground import Moved, Playground

_HOST = "127.0.0.1"
_MOST_BYTES = 4096
"""Of what the page sends."""


class _SupersededError(Exception):
    """Something newer has been asked for."""


class UiServer(ThreadingHTTPServer):
    """Serves one playground."""

    daemon_threads = True

    def __init__(self, playground: Playground, port: int) -> None:
        super().__init__((_HOST, port), _UiHandler)
        self.token = token_urlsafe(16)
        self.nonce = token_urlsafe(16)
        self._playground = playground
        self._numbers = count(1)
        self._newest = 0
        self._lock = Lock()
        page = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
        start = json.dumps(playground.start()).replace("<", "\\u003c")
        values = {"nonce": self.nonce, "title": escape(playground.title), "start": start}
        first, *rest = page.split("{{")
        pieces = (piece.partition("}}") for piece in rest)
        self.page = first + "".join(values[name] + text for name, _, text in pieces)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{_HOST}:{self.server_port}/{self.token}/"

    def answer(self, moved: Moved) -> str:
        """Return what comes of it as JSON; a _SupersededError if something newer was asked for."""
        mine = self._newest = next(self._numbers)

        def check(_: int = 0) -> None:
            if self._newest != mine:
                raise _SupersededError

        with self._lock:
            check()
            return json.dumps(self._playground.answer(moved, check))

    def experiment(self, moved: Moved) -> str:
        """Return the experiment as it stands, in YAML."""
        return self._playground.moved(moved).to_yaml()


class _UiHandler(BaseHTTPRequestHandler):
    server: UiServer
    timeout = 10  # seconds for what is announced to arrive

    def do_GET(self) -> None:
        """Send the page."""
        path = self._path()
        if path == "":
            self._send(HTTPStatus.OK, self.server.page, "text/html")
        elif path is not None:
            self._fail(HTTPStatus.NOT_FOUND, "there is no such page")

    def do_POST(self) -> None:
        """Send an answer, or the experiment; what is wrong with the question in one line."""
        path = self._path()
        if path is None:
            return
        produce = {"answer": self.server.answer, "experiment": self.server.experiment}.get(path)
        if produce is None:
            self._fail(HTTPStatus.NOT_FOUND, "there is no such page")
            return
        try:
            text = produce(self._moved())
        except _SupersededError:
            self._fail(HTTPStatus.CONFLICT, "something newer was asked for")
        except OverflowError as error:
            self._fail(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error))
        except (SpecsimError, UnreadableError) as error:
            self._fail(HTTPStatus.BAD_REQUEST, str(error))
        except Exception as error:
            self._fail(HTTPStatus.INTERNAL_SERVER_ERROR, f"specsim failed: {error!r}")
            raise
        else:
            self._send(HTTPStatus.OK, text, "application/json" if path == "answer" else "text/yaml")

    def _path(self) -> str | None:
        """Return what follows the token; None, once refused, for those who do not have it."""
        names = {f"{_HOST}:{self.server.server_port}", f"localhost:{self.server.server_port}"}
        origin = self.headers.get("Origin")
        if self.headers.get("Host") not in names or origin not in {
            None,
            *map("http://".__add__, names),
        }:
            self._fail(HTTPStatus.FORBIDDEN, "this page is for the browser it was opened in")
            return None
        token, slash, rest = self.path.removeprefix("/").partition("/")
        if not slash or not compare_digest(token.encode(), self.server.token.encode()):
            self._fail(HTTPStatus.NOT_FOUND, "there is no such page; open the address as printed")
            return None
        return rest

    def _moved(self) -> Moved:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise ConfigError("the request does not say how long it is; send Content-Length")
        if len(length) > 9 or int(length) > _MOST_BYTES:
            raise OverflowError(f"the request has {length:.20} bytes; send at most {_MOST_BYTES}")
        try:
            text = self.rfile.read(int(length)).decode()
        except UnicodeDecodeError as error:
            raise ConfigError("the request is no text in UTF-8") from error
        data = parse_json(text)
        if not isinstance(data, dict):
            raise ConfigError("the request is no mapping of what was moved")
        with validated("as moved", ConfigError):
            return Moved.model_validate(data)

    def _fail(self, status: HTTPStatus, text: str) -> None:
        self._send(status, json.dumps({"error": " ".join(text.split())}), "application/json")

    def _send(self, status: HTTPStatus, text: str, kind: str) -> None:
        body, nonce = text.encode(), self.server.nonce
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": f"default-src 'none'; script-src 'nonce-{nonce}'; "
            f"style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; base-uri 'none'; "
            "form-action 'none'; frame-ancestors 'none'",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal is its user's."""


def listen(playground: Playground, port: int) -> UiServer:
    """Return a server that listens; a ConfigError if the port is taken.

    Args:
        port: 0 for any that is free.
    """
    try:
        return UiServer(playground, port)
    except OSError as error:
        why = "is in use" if error.errno == EADDRINUSE else f"cannot be used: {error.strerror}"
        raise ConfigError(f"--port {port}: {why}; give another, or 0 for any") from error
