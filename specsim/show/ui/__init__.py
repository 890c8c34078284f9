"""Ui: an experiment that is simulated again while its load, lengths and policy are being moved."""

import json
from collections.abc import Callable
from errno import EADDRINUSE
from hmac import compare_digest
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from secrets import token_urlsafe
from threading import Lock

from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.reading import UnreadableError, parse_json
from specsim.core.settings import validated
from specsim.show import filled, read_web
from specsim.show.ui.playground import Moved, Playground

_HOST = "127.0.0.1"
_MOST_BYTES = 4096  # of what the page sends


class _RefusedError(Exception):
    """Carries an HTTP status and why."""


class UiServer(ThreadingHTTPServer):
    """Serves one playground."""

    daemon_threads = True

    def __init__(self, playground: Playground, port: int) -> None:
        super().__init__((_HOST, port), _UiHandler)
        self.token, self.nonce = token_urlsafe(16), token_urlsafe(16)
        self.playground = playground
        self._numbers = count(1)
        self._newest = 0
        self._lock = Lock()

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self.server_port}/{self.token}/"

    def page(self) -> str:
        start = self.playground.start()
        data = json.dumps(start).replace("<", "\\u003c")
        values = {"nonce": self.nonce, "title": escape(start["title"]), "start": data}
        values |= {"base": read_web("base.css"), "dom": read_web("dom.js")}
        return filled(Path(__file__).with_name("page.html").read_text(encoding="utf-8"), values)

    def answer(self, moved: Moved) -> str:
        """Return what comes of it, in JSON, unless something newer is asked for meanwhile."""
        mine = self._newest = next(self._numbers)

        def check(_: int = 0) -> None:
            if self._newest != mine:
                raise _RefusedError(409, "something newer was asked for")

        with self._lock:
            check()
            return json.dumps(self.playground.answer(moved, check))


class _UiHandler(BaseHTTPRequestHandler):
    server: UiServer
    timeout = 10  # seconds for what is announced to arrive

    def do_GET(self) -> None:
        self._reply({"": ("text/html", self.server.page)})

    def do_POST(self) -> None:
        own = self.server
        self._reply(
            {
                "answer": ("application/json", lambda: own.answer(self._moved())),
                "experiment": ("text/yaml", lambda: own.playground.moved(self._moved()).to_yaml()),
            }
        )

    def _reply(self, known: dict[str, tuple[str, Callable[[], str]]]) -> None:
        status, kind = 200, "application/json"
        try:
            kind, produce = known[self._path(set(known))]
            text = produce()
        except _RefusedError as refused:
            status, text = refused.args
        except (SpecsimError, UnreadableError) as error:
            status, text = 400, str(error)
        except Exception as error:
            self._send(500, "application/json", json.dumps({"error": f"specsim failed: {error!r}"}))
            raise
        if status != 200:
            kind, text = "application/json", json.dumps({"error": " ".join(text.split())})
        self._send(status, kind, text)

    def _path(self, known: set[str]) -> str:
        """Return what follows the token, if it is known."""
        names = [f"{name}:{self.server.server_port}" for name in (_HOST, "localhost")]
        origin = self.headers.get("Origin")
        if self.headers.get("Host") not in names or origin not in [
            None, *(f"http://{name}" for name in names)
        ]:  # fmt: skip
            raise _RefusedError(403, "this page is for the browser it was opened in")
        token, slash, rest = self.path.removeprefix("/").partition("/")
        is_ours = compare_digest(token.encode(), self.server.token.encode())
        if not slash or not is_ours or rest not in known:
            raise _RefusedError(404, "there is no such page; open the address as it was printed")
        return rest

    def _moved(self) -> Moved:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise ConfigError("the request does not say how long it is; send Content-Length")
        if len(length) > 9 or int(length) > _MOST_BYTES:
            raise _RefusedError(413, f"the request is too long; send at most {_MOST_BYTES} bytes")
        data = parse_json(self.rfile.read(int(length)).decode(errors="replace"))
        if not isinstance(data, dict):
            raise ConfigError("the request is no mapping of what was moved")
        with validated("as moved", ConfigError):
            return Moved.model_validate(data)

    def _send(self, status: int, kind: str, text: str) -> None:
        body, nonce = text.encode(), self.server.nonce
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", policy)
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal is its user's."""


def listen(playground: Playground, port: int) -> UiServer:
    """Return a server that listens, on any free port if 0; a ConfigError if the port is taken."""
    try:
        return UiServer(playground, port)
    except OSError as error:
        why = "is in use" if error.errno == EADDRINUSE else f"cannot be used: {error.strerror}"
        raise ConfigError(f"--port {port}: {why}; give another, or 0 for any") from error


__all__ = ["Moved", "Playground", "listen"]
