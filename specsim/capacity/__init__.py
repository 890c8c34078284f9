"""Capacity: which load a server sustains within limits, how many that takes, and what it costs."""

from specsim.capacity.hardware import Hardware, find_hardware
from specsim.capacity.limits import parse_slo
from specsim.capacity.plan import Capacity, Choices, Goal
from specsim.capacity.prices import Prices
from specsim.capacity.run import find_capacity
from specsim.capacity.written import save

__all__ = [
    "Capacity",
    "Choices",
    "Goal",
    "Hardware",
    "Prices",
    "find_capacity",
    "find_hardware",
    "parse_slo",
    "save",
]
