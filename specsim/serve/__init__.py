"""Serve: an experiment as a server that answers OpenAI's API, without a GPU, on the wall clock."""

from specsim.serve.server import LiveServer, ServeOptions, serve, services

__all__ = ["LiveServer", "ServeOptions", "serve", "services"]
