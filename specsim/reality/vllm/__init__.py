"""vLLM: recorded from within its own process, and started to be recorded.

The modules `recorder`, `scheduler` and `launch` import nothing but the standard library and vLLM,
so this file imports nothing.
"""
