"""Capacity: which load a server sustains within limits, how many that takes, and what it costs."""

from specsim.study.capacity.hardware import Hardware, find_hardware
from specsim.study.capacity.limits import parse_slo
from specsim.study.capacity.plan import Capacity, Choices, Goal
from specsim.study.capacity.prices import Prices
from specsim.study.capacity.run import find_capacity
from specsim.study.capacity.written import save

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
