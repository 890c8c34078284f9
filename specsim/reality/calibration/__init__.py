"""Calibration: real engines, real runs, and what is recorded of them.

What runs inside another engine's process imports nothing but the standard library and that engine,
so this file imports nothing.
"""
