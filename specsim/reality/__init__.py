"""Reality: recordings of real engines, and how far the simulator is from them.

Parts of it run inside another engine's process, so this file imports nothing.
"""
