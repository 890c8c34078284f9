"""Servers in a thread of the test, and what is asked of them."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import tiny_config

from specsim.run.experiment import Experiment
from specsim.serve import LiveServer, ServeOptions, services
from specsim.serve.app import Service


class Served(NamedTuple):
    """A server that runs, and how to ask it."""

    services: list[Service]
    ports: list[int]
    call: Callable[[Callable[[], Any]], Any]
    """Calls a function in the server's loop, and returns what it returns."""
    server: LiveServer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    @property
    def live(self) -> Any:
        return self.services[0].live

    def ask(
        self,
        path: str,
        body: object = None,
        method: str | None = None,
        headers: dict[str, str] | None = None,
        port: int | None = None,
    ) -> tuple[int, Any]:
        """Return status and answer; JSON is parsed."""
        connection = HTTPConnection("127.0.0.1", port or self.ports[0], timeout=20)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        verb = method or ("GET" if body is None else "POST")
        connection.request(verb, path, data, headers or {})
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        is_json = (reply.headers["Content-Type"] or "").startswith("application/json")
        return reply.status, json.loads(text) if is_json else text

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """Return the events of a stream, which must end as OpenAI's do."""
        status, text = self.ask(path, {**body, "stream": True})
        assert status == 200, text
        found = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        assert found.pop() == "[DONE]"
        return [json.loads(line) for line in found]


@contextmanager
def serving(options: ServeOptions | None = None, **config: Any) -> Iterator[Served]:
    """Serve a small experiment, in a loop of its own, 50 times as fast as the clock."""
    options = options or ServeOptions(port=0, speed=50.0, grace=0.5)
    made = services(Experiment.parse(tiny_config(**config), "test"), options)
    server, loop = LiveServer(made, options), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def call(function: Callable[[], Any]) -> Any:
        async def called() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), loop).result(20)

    try:
        ports = asyncio.run_coroutine_threadsafe(server.start(), loop).result(60)
        yield Served(made, ports, call, server)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


def word_tokenizer(folder: Path) -> Path:
    """Write a tokenizer of bytes and a few words, as a Hugging Face folder; return its file."""
    tokenizers = pytest.importorskip("tokenizers")
    folder.mkdir()
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=None))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>"],
    )
    made.train_from_iterator(
        [" the and for are but not you all can her was one our out"] * 50, trainer
    )
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
        )
    )
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 600}))
    return folder / "tokenizer.json"
