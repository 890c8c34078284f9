"""``specsim serve``: agreement with the simulation, deliveries per second, abuse, and stalls.

    python benchmarks/serve.py agreement [--streams 50 100 200] [--seconds 30]
    python benchmarks/serve.py deliveries [--streams 200] [--speed 20]
    python benchmarks/serve.py abuse [--number 50000]
    python benchmarks/serve.py stalls

The server is a process of its own, and so is what asks it: on two cores each has one, if nothing
else runs. `agreement` holds so many streams open and compares what the client saw with
the simulation of the requests in the server's log. The exit code is 1 if a bound is missed: 2 % + 1
ms at p50 and p99, 5,000 deliveries per second, an HTTP error for all that is bad, and no leak;
and /health within 200 ms while the server has a request that is as much work as requests can be.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import urlopen

import numpy as np

from specsim.core.request import Request
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate

ROOT = Path(__file__).parents[1]
EXPERIMENT = """\
workload:
  arrivals: {kind: poisson, rate: 1.0}
  lengths: {kind: uniform, prompt: [100, 600], output: [100, 300]}
  num_requests: 1000
engine:
  speculative_config: {method: eagle3, num_speculative_tokens: 3}
acceptance: {kind: bernoulli, alpha: 0.62}
profile: h100/llama-3.1-8b
"""


@dataclass
class Server:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    port: int

    @property
    def rss_mib(self) -> float:
        """Memory that it has, MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024

    @property
    def cpu_seconds(self) -> float:
        """Time that it has computed."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def metric(self, name: str) -> float:
        """Return a metric, summed over its labels."""
        with urlopen(f"http://127.0.0.1:{self.port}/metrics") as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))


@contextmanager
def served(folder: Path, *options: str, text: str = EXPERIMENT) -> Iterator[Server]:
    """Serve an experiment on a port that is free."""
    path = folder / "experiment.yaml"
    path.write_text(text)
    command = [sys.executable, "-m", "specsim", "serve", str(path), "--port", "0", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        found = re.search(r":(\d+) ", process.stdout.readline())
        assert found, "the server has not started"
        yield Server(process, int(found[1]))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


@dataclass
class Seen:
    """What a client saw of one request; times in seconds on its clock."""

    prompt_len: int
    output_len: int
    sent_at: float = 0.0
    times: list[float] = field(default_factory=list)
    """Of each event that held tokens."""

    @property
    def ttft(self) -> float:
        return self.times[0] - self.sent_at

    @property
    def e2e(self) -> float:
        return self.times[-1] - self.sent_at

    @property
    def tpot(self) -> float:
        return (self.times[-1] - self.times[0]) / max(1, self.output_len - 1)


class Client(asyncio.Protocol):
    """One connection, which asks again when it has its answer; it reads as little as it can."""

    def __init__(self, load: "Load") -> None:
        self._load = load
        self.now: Seen | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self) -> None:
        seen, body = self._load.next()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self.now = seen
        self.transport.write(head.encode() + body)
        seen.sent_at = time.perf_counter()

    def data_received(self, data: bytes) -> None:
        at, seen = time.perf_counter(), self.now
        assert seen is not None
        events = data.count(b'"index":0')
        if events:
            seen.times.extend([at] * events)
        if data.endswith(b"0\r\n\r\n"):
            self._load.answered(self, seen)


class Load:
    """A number of streams, held open for some time."""

    def __init__(self, streams: int, seconds: float, seed: int, lens: tuple[int, int]) -> None:
        self._random = random.Random(seed)
        self.streams, self.seconds, self.lens = streams, seconds, lens
        self.seen: list[Seen] = []
        self.left = streams
        self.is_over = False

    def next(self) -> tuple[Seen, bytes]:
        prompt = [self._random.randrange(1 << 30) for _ in range(self._random.randint(100, 600))]
        length = self._random.randint(*self.lens)
        body = {"prompt": prompt, "max_tokens": length, "ignore_eos": True, "stream": True}
        return Seen(len(prompt), length), json.dumps(body).encode()

    def answered(self, client: Client, seen: Seen) -> None:
        self.seen.append(seen)
        if self.is_over:
            self.left -= 1
            client.transport.close()
        else:
            client.ask()

    async def run(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        clients = []
        for _ in range(self.streams):
            _, client = await loop.create_connection(lambda: Client(self), "127.0.0.1", port)
            clients.append(client)
        for client in clients:  # not all at once
            client.ask()
            await asyncio.sleep(min(0.02, 4.0 / self.streams))
        await asyncio.sleep(self.seconds)
        self.is_over = True
        while self.left:
            await asyncio.sleep(0.01)


def requests_of(rows: list[Any]) -> list[Request]:
    """Return the requests in a server's log, whose rows are in order of their numbers."""
    assert [row["number"] for row in rows] == list(range(len(rows)))
    return [
        Request(
            index=row["number"],
            prompt_len=row["input_toks"],
            output_len=row["output_toks"],
            arrived_at=row["arrival_time"],
            prompt_token_ids=np.array(row["input_tok_ids"]),
            output_token_ids=np.array(row["output_tok_ids"]),
        )
        for row in rows
    ]


def simulated(folder: Path) -> dict[str, np.ndarray]:
    """Return the latencies of a simulation of the requests in a server's log, seconds."""
    rows = [json.loads(line) for line in (folder / "log/requests.jsonl").read_text().splitlines()]
    requests = requests_of(sorted(rows, key=lambda row: row["number"]))
    run = simulate(Experiment.load(folder / "experiment.yaml"), requests=requests)
    table = np.concatenate([each.requests for each in run.replicas])
    ttft = table["first_token_at"] - table["arrived_at"]
    e2e = table["ended_at"] - table["arrived_at"]
    tpot = (e2e - ttft) / np.maximum(1, table["output_len"] - 1)
    return {"ttft": ttft, "tpot": tpot, "e2e": e2e}


def agreement(streams: int, seconds: float, seed: int) -> bool:
    """Print how far what a client sees is from the simulation; return whether it is near enough."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        load = Load(streams, seconds, seed, (100, 300))
        with served(folder, "--log", str(folder / "log")) as server:
            before, began_at = server.cpu_seconds, time.perf_counter()
            asyncio.run(load.run(server.port))
            took = time.perf_counter() - began_at
            busy = (server.cpu_seconds - before) / took
        expected = simulated(folder)
    is_near = True
    deliveries = sum(len(seen.times) for seen in load.seen)
    print(
        f"{streams} streams: {len(load.seen):,} requests, {deliveries / took:,.0f} deliveries/s, "
        f"server {100 * busy:.0f} % of a core, load {os.getloadavg()[0]:.1f}"
    )
    for metric, values in expected.items():
        seen_values = [getattr(seen, metric) for seen in load.seen]
        for percentile in (50, 99):
            sim, real = np.percentile(values, percentile), np.percentile(seen_values, percentile)
            error, bound = real - sim, 0.02 * sim + 0.001
            is_near &= abs(error) <= bound
            print(
                f"  {metric:5} p{percentile}: simulated {sim * 1e3:8.2f} ms, client "
                f"{real * 1e3:8.2f} ms, {error * 1e3:+6.2f} ms ({100 * error / sim:+.2f} %)"
                f"{'' if abs(error) <= bound else '  MISSED'}"
            )
    return is_near


def deliveries(streams: int, speed: float, seconds: float) -> bool:
    """Print how many deliveries a second one core can make."""
    with tempfile.TemporaryDirectory() as name:
        load = Load(streams, seconds, 0, (400, 600))
        with served(Path(name), "--speed", str(speed)) as server:
            asyncio.run(load.run(server.port))
            cpu = server.cpu_seconds
        times = np.sort(np.concatenate([seen.times for seen in load.seen]))
        middle = times[(times > times[0] + 4) & (times < times[0] + seconds)]
        rate = len(middle) / (middle[-1] - middle[0])
    print(
        f"{streams} streams at speed {speed:g}: {rate:,.0f} deliveries/s, {len(times):,} in all, "
        f"{1e6 * cpu / len(times):.0f} us of the server each, load {os.getloadavg()[0]:.1f}"
    )
    return rate >= 5000


GOOD = {"prompt": "tell me a story", "max_tokens": 8, "ignore_eos": True}
PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")
STREAMS = {**GOOD, "stream": True, "max_tokens": 500}


def wrong(rng: random.Random) -> object:
    """Return something that a field does not expect."""
    return rng.choice(
        (None, -1, 0, 1 << 80, 1.5, "x", "\ud800", [], [[]], {}, True, [None], ["", 1], "z" * 9000)
    )


def bad_body(rng: random.Random) -> bytes:
    """Return a body that is wrong in one way or several, or by chance is not."""
    body: dict[str, Any] = dict(GOOD)
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(
            ("prompt", "max_tokens", "n", "stream", "stop", "min_tokens", "messages", "model",
             "stream_options", "temperature", "logprobs", "priority", "echo", "tokens", "unknown")
        )  # fmt: skip
        body[name] = wrong(rng)
    if isinstance(body.get("n"), int):
        body["n"] = min(body["n"], 3)  # many answers are no abuse
    text = json.dumps(body).encode()
    kind = rng.randrange(8)
    if kind == 0:
        return text[: rng.randrange(len(text))]
    if kind == 1:
        return b"[" * rng.randint(1, 5000)
    if kind == 2:
        return rng.randbytes(rng.randint(0, 300))
    if kind == 3:
        place = rng.randrange(len(text))
        return text[:place] + rng.randbytes(1) + text[place + 1 :]
    return text


def framed(
    path: str, body: bytes, *, method: str = "POST", length: int | None = None, extra: str = ""
) -> bytes:
    """Return an HTTP request; a negative length is not told."""
    size = len(body) if length is None else length
    told = f"Content-Length: {size}\r\n" if size >= 0 else ""
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n{extra}{told}\r\n".encode() + body


def attack(rng: random.Random) -> tuple[str, bytes, bool]:
    """Return what kind of abuse, what is sent, and whether an answer is waited for."""
    kind = rng.choices(
        ("body", "path", "garbage", "header", "huge", "cut", "gone", "slow", "method", "good"),
        (60, 4, 4, 2, 2, 6, 8, 2, 4, 8),
    )[0]
    path = rng.choice(PATHS)
    stream = json.dumps(STREAMS).encode()
    made = {
        "body": lambda: framed(path, bad_body(rng)),
        "path": lambda: framed("/" + "%" * rng.randint(0, 9) + "x" * rng.randint(0, 300), b"{}"),
        "garbage": lambda: rng.randbytes(rng.randint(20, 200)) + b"\r\n\r\n",
        "header": lambda: b"GET /health HTTP/1.1\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
        "huge": lambda: framed(path, b"{", length=1 << 40),
        "cut": lambda: framed(path, b"{", length=rng.randint(2, 5000)),
        "gone": lambda: framed(PATHS[0], stream),
        "slow": lambda: framed(PATHS[0], stream),
        "method": lambda: framed(path, b"", method=rng.choice(("GET", "PUT", "DELETE", "BREW"))),
        "good": lambda: framed(PATHS[0], json.dumps(GOOD).encode()),
    }[kind]()
    return kind, made, kind not in ("cut", "gone", "slow")


class Asker:
    """One who sends bad requests, one after the other or several in a write; counts the outcomes.

    What an HTTP server answers and goes on is sent over connections that are kept; what ends a
    connection gets one of its own, and so does what such a connection leaves unanswered.
    """

    def __init__(self, port: int, found: Counter[str]) -> None:
        self._port, self._found = port, found
        self._kept: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, rngs: list[random.Random]) -> None:
        """Send what these make of it."""
        made = [(*attack(rng), rng) for rng in rngs]
        together = [each for each in made if each[0] in KEPT and not each[1].startswith(b"BREW")]
        alone = [each for each in made if each not in together]
        alone += await self._ask_together(together) if together else []
        for kind, data, waits, rng in alone:
            self._found[await self._ask_alone(kind, data, waits, rng)] += 1

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 22)

    async def _ask_together(self, made: list[Any]) -> list[Any]:
        """Send requests in one write; return those left without an answer when it ended."""
        if self._kept is None:
            self._kept = await self._connected()
        reader, writer = self._kept
        for place, (kind, _, _, _) in enumerate(made):
            try:
                if not place:
                    writer.write(b"".join(data for _, data, _, _ in made))
                async with asyncio.timeout(60):
                    status, is_last = await answered(reader)
            except (ConnectionError, asyncio.IncompleteReadError):
                await self.close()
                return made[place:]
            except TimeoutError:
                await self.close()
                self._found[f"{kind} silent"] += 1
                return made[place + 1 :]
            self._found[f"{kind} {status}"] += 1
            if is_last:
                await self.close()
                return made[place + 1 :]
        return []

    async def _ask_alone(self, kind: str, data: bytes, waits: bool, rng: random.Random) -> str:
        reader, writer = await self._connected()
        try:
            writer.write(data)
            if kind == "slow":
                await asyncio.sleep(0.05)
            if kind == "gone":
                await reader.read(1 + rng.randrange(2000))
            if not waits:
                return f"{kind} left"
            async with asyncio.timeout(60):
                line = await reader.readline()
        except ConnectionError:
            return f"{kind} reset"
        except TimeoutError:
            return f"{kind} silent"
        else:
            known = line.startswith(b"HTTP/1.")
            return f"{kind} {line.split()[1].decode() if known else f'none {line!r:.40}'}"
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def close(self) -> None:
        """Hang up."""
        if self._kept is not None:
            _, writer = self._kept
            self._kept = None
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


KEPT = {"body", "path", "method", "good"}
"""Kinds of abuse after which a connection may go on."""


async def answered(reader: asyncio.StreamReader) -> tuple[str, bool]:
    """Read an answer to its end; return its status, and whether the server hangs up now."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = re.search(rb"content-length: (\d+)", head)
    if length:
        await reader.readexactly(int(length[1]))
    elif b"transfer-encoding: chunked" in head:
        while size := int(await reader.readline(), 16):
            await reader.readexactly(size + 2)
        await reader.readline()
    return head.split()[1].decode(), b"connection: close" in head


async def abused(port: int, number: int, seed: int, workers: int = 16) -> Counter[str]:
    """Send so many bad requests; return how they were answered, by kind and status."""
    found: Counter[str] = Counter()
    numbers = iter(range(number))

    async def work() -> None:
        asker = Asker(port, found)
        while places := list(islice(numbers, 12)):
            await asker.ask([random.Random(f"{seed}-{place}") for place in places])
        await asker.close()

    await asyncio.gather(*(work() for _ in range(workers)))
    return found


PROPER = {"200", "400", "404", "405", "408", "413", "422", "503", "left", "reset"}


def improper(found: Counter[str]) -> list[str]:
    """Return the outcomes that no client should meet."""
    return [f"{key} ({count})" for key, count in found.items() if key.split()[1] not in PROPER]


def abuse(number: int, seed: int) -> bool:
    """Print how bad requests were answered, and what the server has lost by them."""
    total: Counter[str] = Counter()
    parts = max(10, number // 25_000)
    # So slow that who hangs up does so in the middle; and long answers are no abuse.
    options = ("--speed", "10", "--set", "engine.max_model_len=512")
    with tempfile.TemporaryDirectory() as name, served(Path(name), *options) as server:
        asyncio.run(abused(server.port, 2000, -1))  # so that what is made once has been made
        before, began_at = server.rss_mib, time.perf_counter()
        for part in range(parts):
            total += asyncio.run(abused(server.port, number // parts, seed * parts + part))
            print(
                f"  {sum(total.values()):,}: {server.rss_mib:.0f} MiB, "
                f"{server.cpu_seconds:.0f} s of a core, improper: {improper(total) or 0}",
                flush=True,
            )
        took, after = time.perf_counter() - began_at, server.rss_mib
        time.sleep(1.0)
        used, running = (
            server.metric("vllm:kv_cache_usage_perc"),
            server.metric("vllm:num_requests_running"),
        )
    for key, count in sorted(total.items()):
        print(f"  {key}: {count:,}")
    print(
        f"{sum(total.values()):,} bad requests in {took:.0f} s: memory {before:.0f} -> {after:.0f} "
        f"MiB, KV cache {used:.1%} in use, {running:.0f} running; improper: {improper(total) or 0}"
    )
    return not improper(total) and not used and not running and after - before < 20.0


def framed_last(path: str, body: bytes, extra: str = "", **how: Any) -> bytes:
    """Return an HTTP request after whose answer the server hangs up."""
    return framed(path, body, extra=f"Connection: close\r\n{extra}", **how)


def deflated(size: int) -> bytes:
    """Return a request whose body inflates to so many bytes."""
    packer = zlib.compressobj(9)
    parts = [packer.compress(b" " * (1 << 20)) for _ in range(size >> 20)]
    body = b"".join([*parts, packer.flush()])
    return framed_last(PATHS[0], body, extra="Content-Encoding: deflate\r\n")


def heavy() -> dict[str, list[bytes]]:
    """Return requests that are much work, by what they are; several are sent at once."""

    def asked(path: str, **body: object) -> list[bytes]:
        return [framed_last(path, json.dumps(body).encode())]

    def messages(number: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": "hi"}] * number

    def listed(item: str, most: int = 16_700_000) -> list[bytes]:
        items = item * (most // len(item))
        return [framed_last(PATHS[0], f'{{"prompt": [{items}{item[:-1]}]}}'.encode())]

    completions, chat, tokenize, detokenize = PATHS[0], PATHS[1], PATHS[2], PATHS[3]
    many = {"max_tokens": 120_000, "ignore_eos": True}
    story, part = " the old story" * 36_000, {"type": "text", "text": "hi"}
    keys = ",".join(f'"{number}":1' for number in range(1_500_000))
    stops = [" the and for are but not you all can her was" * 20 + f" {n}" for n in range(64)]
    return {
        "nothing": [],
        "a deflated body of 1 GiB": [deflated(1 << 30)],
        "400,000 prompts of a word": asked(completions, prompt=["word"] * 400_000),
        "4,000 prompts of a word": asked(completions, prompt=["word"] * 4000, max_tokens=4),
        "200,000 messages": asked(chat, messages=messages(200_000)),
        "9,000 messages": asked(chat, messages=messages(9000), max_tokens=4),
        "a message of 400,000 parts": asked(
            chat, messages=[{"role": "user", "content": [part] * 400_000}]
        ),
        "16 MiB of lists": listed("[],"),
        "16 MiB of numbers": listed("1,"),
        "16 MiB of texts": listed('"a",'),
        "16 MiB of keys": [framed_last(completions, f"{{{keys}}}".encode())],
        "16 MiB of text": asked(completions, prompt="a" * ((16 << 20) - 100)),
        "16 MiB of escapes": [
            framed_last(completions, b'{"prompt": "' + b"\\u00e4" * 2_790_000 + b'"}')
        ],
        "16 MiB of quotes": [
            framed_last(completions, b'{"prompt": "' + b'\\"' * 8_380_000 + b'"}')
        ],
        "deep lists": [framed_last(completions, b"[" * (16 << 20))],
        "128 answers of 120,000 tokens": asked(completions, prompt="x", n=128, **many),
        "the same as a stream": asked(completions, prompt="x", n=128, stream=True, **many),
        "64 stop strings of 128 such": asked(completions, prompt="x", n=128, stop=stops, **many),
        "echoes of a long prompt": asked(
            completions, prompt=story[:500_000], n=128, echo=True, max_tokens=2
        ),
        "1,000,000 ids": asked(completions, prompt=[12345] * 1_000_000, max_tokens=4),
        "16 MiB to tokenize": asked(tokenize, prompt="a" * ((16 << 20) - 100)),
        "1,000,000 ids to detokenize": asked(detokenize, tokens=[544_500_000] * 1_000_000),
        "20 bodies of 8 MiB at once": listed("12,", 8 << 20) * 20,
        "500 streams": asked(completions, prompt="x", stream=True, max_tokens=300) * 500,
        "20,000 requests in a row": [
            framed("/health", b"", method="GET") * 20_000
            + framed_last("/health", b"", method="GET")
        ],
        "a header of 1 MiB": [b"GET /health HTTP/1.1\r\nX: " + b"y" * (1 << 20) + b"\r\n\r\n"],
        "100,000 headers": [b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 100_000 + b"\r\n"],
        "a body in 300,000 chunks": [
            framed_last(completions, b"", extra="Transfer-Encoding: chunked\r\n", length=-1)
            + b"1\r\n \r\n" * 300_000
            + b"0\r\n\r\n"
        ],
    }


class Probe(Thread):
    """Asks for /health all the time, and notes how long each answer takes, seconds."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self.took: list[float] = []
        self.is_over = False

    def run(self) -> None:
        request = framed("/health", b"", method="GET")
        with socket.create_connection(("127.0.0.1", self._port)) as connection:
            while not self.is_over:
                began_at = time.perf_counter()
                connection.sendall(request)
                assert connection.recv(4096).startswith(b"HTTP/1.1 200")
                self.took.append(time.perf_counter() - began_at)
                time.sleep(0.005)


def sent(port: int, data: bytes, found: Counter[str], most: float) -> None:
    """Send a request, read its answer to the end, or so many seconds; note its status."""
    until = time.monotonic() + most
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(most)
        try:
            with suppress(ConnectionError):
                connection.sendall(data)
            answer = connection.recv(1 << 16)
            found[answer[9:12].decode() or "closed"] += 1
            while connection.recv(1 << 16):
                connection.settimeout(max(0.1, until - time.monotonic()))
        except TimeoutError:
            found["unfinished"] += 1
        except ConnectionError:
            found["reset"] += 1


def stalls(most: float) -> bool:
    """Print how long /health takes while each heavy request is served, for so many seconds."""
    is_quick = True
    for name, requests in heavy().items():
        with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as server:
            sent(server.port, framed_last(PATHS[0], json.dumps(GOOD).encode()), Counter(), most)
            found: Counter[str] = Counter()
            probe, began_at, before = Probe(server.port), time.perf_counter(), server.rss_mib
            probe.start()
            threads = [
                Thread(target=sent, args=(server.port, data, found, most)) for data in requests
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            time.sleep(0.5)
            took, memory = time.perf_counter() - began_at, server.rss_mib - before
            probe.is_over = True
            probe.join()
        worst = max(probe.took)
        is_quick &= worst <= 0.2
        print(
            f"{name:30} /health {1e3 * np.median(probe.took):6.1f} ms, at most "
            f"{1e3 * worst:8.1f} ms{'' if worst <= 0.2 else ' MISSED'}; "
            f"{took:5.1f} s, {memory:+6.0f} MiB, {dict(found)}",
            flush=True,
        )
    return is_quick


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("agreement", "deliveries", "abuse", "stalls"))
    parser.add_argument("--streams", type=int, nargs="+", default=[50, 100, 200])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--speed", type=float, default=20.0)
    parser.add_argument("--number", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.what == "agreement":
        found = [agreement(each, given.seconds, given.seed) for each in given.streams]
        return 0 if all(found) else 1
    if given.what == "deliveries":
        return 0 if deliveries(given.streams[-1], given.speed, given.seconds) else 1
    if given.what == "stalls":
        return 0 if stalls(given.seconds) else 1
    return 0 if abuse(given.number, given.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
