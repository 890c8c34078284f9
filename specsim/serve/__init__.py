"""Serve: an experiment as a server that answers OpenAI's API, without a GPU, on the wall clock."""

from specsim.serve.server import Options, Server, serve, services

__all__ = ["Options", "Server", "serve", "services"]
