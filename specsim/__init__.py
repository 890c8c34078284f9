"""specsim: a discrete-event simulator of LLM serving with speculative decoding.

The rooms, in the order in which a run passes through (ARCHITECTURE.md walks one request through):

``run``          one YAML file, checked and frozen; the server it describes; simulation; summary
``workload``     which requests come, when, how long; readers for every trace format
``routing``      which replica takes a request
``engine``       a table of sequences and the five verbs of a step; replicas on SimPy's clock
``policies``     how much to draft, decided anew at every step
``proposers``, ``lookup``, ``acceptance``   who drafts, from what, what survives
``latency``, ``profile``, ``hardware``      how long a step takes, on which GPU, with which model
``results``      records, metrics, files
``study``        many runs for one answer: compare, tune, sweep, capacity, plan, gate
``reality``      real engines: calibration, validation, parity with recordings
``tokens``       traces of real tokens
``show``, ``cli``   tables, pictures, pages; the command line
``core``         what all others use

Import the public names from `specsim.api`; this file imports no room, so that the command line
starts fast.
"""
