"""Ui: an experiment that is simulated again while its load, lengths and policy are being moved."""

from specsim.show.ui.playground import Moved, Playground
from specsim.show.ui.server import listen

__all__ = ["Moved", "Playground", "listen"]
