"""What comes over the network: replies to a client, moves of sliders, requests for answers."""

import asyncio
import functools
import random
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from fuzz_changes import as_json, mutated, torn
from fuzz_values import BASE

LIMIT_SECONDS = 15.0  # of its own time, for the 10 s that are allowed on a machine that is idle
_PATIENCE = 1.0  # seconds after which a server is told that no more bytes come
EVENT = b'data: {"choices":[{"text":"a","token_ids":[1]}],"usage":{"completion_tokens":1}}\n\n'


def a_reply(rng: random.Random) -> list[str]:
    """Let the client read a server's reply, which is no command."""
    pages = [b'{"data":[{"id":"m","max_model_len":9}]}', b'vllm:x_total{a="b"} 1\n', EVENT * 3]
    page = rng.choice(pages)
    data = torn(page, rng)
    if page is pages[2]:
        data += rng.choice((b"data: [DONE]\n\n", b"", b"data: " + b"[" * 5000 + b"\n\n"))
    Path("reply").write_bytes(data)
    return ["(reply)", "reply"]


def read_reply(path: str) -> int:
    """Do with a reply what `observe` does."""
    from specsim.reality.observe import client

    data = Path(path).read_bytes()

    class Content:
        async def iter_any(self) -> Any:
            for start in range(0, len(data), 7):
                yield data[start : start + 7]

    class Response:
        content = Content()

    client.parse_metrics(data.decode("utf-8", "replace"))
    client._models(data.decode("utf-8", "replace"))
    try:
        asyncio.run(client.read_answer(Response(), client.StreamedAnswer(0.0, asked_len=5)))
    except client.TooMuchError:
        return 2
    return 0


def a_move(rng: random.Random) -> list[str]:
    """Make what the page with sliders sends, which is no command."""
    moved = {"rate": 30.0, "prompt": 50, "output": 20, "alpha": 0.5, "policy": "static", "k": 2}
    moved |= {"gpu": rng.choice(("h100/llama-3.1-8b", "x")), "ttft_ms": 100.0}
    body = as_json(mutated(moved, rng)) if rng.random() < 0.7 else torn(as_json(moved), rng)
    path = rng.choice(("answer", "answer", "experiment", "../x"))
    head = f"POST /TOKEN/{path} HTTP/1.1\r\nHost: HOST\r\nContent-Length: {len(body)}\r\n\r\n"
    data = head.encode() if rng.random() < 0.8 else torn(head.encode(), rng)
    Path("request").write_bytes(data + body)
    return ["(move)", "request"]


@functools.cache
def ui_server() -> Any:
    """Return a server of `specsim ui`, one for each worker."""
    from specsim.run.experiment import Experiment
    from specsim.show.ui import Playground, listen

    server = listen(Playground(Experiment.parse(BASE, "fuzz")), 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def send_move(path: str) -> int:
    """Send the bytes of a request; return 2 where it is refused."""
    server = ui_server()
    data = Path(path).read_bytes().replace(b"TOKEN", server.token.encode())
    data = data.replace(b"HOST", b"127.0.0.1:%d" % server.server_port)
    return _sent(server.server_port, data)


def a_request(rng: random.Random) -> list[str]:
    """Make what `specsim serve` is asked, which is no command."""
    sampling = {"max_tokens": 5, "stream": rng.random() < 0.5, "n": 2, "temperature": 0.5}
    said = [{"role": "user", "content": "a b c"}, {"role": "assistant", "content": "d"}]
    bodies: dict[str, Any] = {
        "/v1/completions": {"model": "x", "prompt": [1, 2, 3], "ignore_eos": True, **sampling},
        "/v1/chat/completions": {"messages": said, "min_tokens": 2, "stop": ["q"], **sampling},
        "/tokenize": {"prompt": "hello"},
        "/detokenize": {"tokens": [1, 2]},
        "/metrics": None,
    }
    path = rng.choice(list(bodies))
    valid = b"" if bodies[path] is None else as_json(bodies[path])
    body = valid
    if valid:
        is_nested = rng.random() < 0.7
        body = as_json(mutated(bodies[path], rng)) if is_nested else torn(valid, rng)
    verb = "POST" if valid else "GET"
    head = f"{verb} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    data = head.encode() if rng.random() < 0.8 else torn(head.encode(), rng)
    Path("request").write_bytes(data + body)
    return ["(request)", "request"]


@functools.cache
def api_port() -> int:
    """Return the port of a server of `specsim serve`, one for each worker."""
    from specsim.run.experiment import Experiment
    from specsim.serve import LiveServer, ServeOptions, services

    options = ServeOptions(port=0, speed=100.0, grace=0.5)
    server = LiveServer(services(Experiment.parse(BASE, "fuzz"), options), options)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return int(asyncio.run_coroutine_threadsafe(server.start(), loop).result(60)[0])


def send_request(path: str) -> int:
    """Send the bytes of a request; return 2 where it is refused."""
    return _sent(api_port(), Path(path).read_bytes())


def _sent(port: int, data: bytes) -> int:
    """Send bytes and read the reply; return 2 where they are refused.

    Raises:
        AssertionError: The server failed.
    """
    reply = b""
    address = ("127.0.0.1", port)
    # It may hang up on what is no request.
    with socket.create_connection(address, _PATIENCE) as there, suppress(ConnectionError):
        there.sendall(data)
        with suppress(TimeoutError):  # it may wait for the rest of a body
            reply = there.recv(65536)
        there.settimeout(LIMIT_SECONDS)
        with suppress(OSError):
            there.shutdown(socket.SHUT_WR)
        for part in iter(lambda: there.recv(65536), b""):
            reply += part
    status = reply.split(b" ", 2)[1:2]
    if status == [b"500"]:
        raise AssertionError(reply[-300:])
    return 0 if status == [b"200"] else 2
