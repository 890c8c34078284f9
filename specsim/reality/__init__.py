"""Reality: real engines, what is recorded of them, and how far the simulator is from it.

Parts of it run inside another engine's process, so this file imports nothing.
"""
