"""What policies share: loops, and the records that they work on."""

ROOMS = (__name__, "specsim.latency.form", "specsim.profile.step_time")
"""Modules and packages whose functions these loops call."""
