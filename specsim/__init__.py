"""specsim: a discrete-event simulator of LLM serving with speculative decoding.

A ten-line tour, in the order in which a run passes through:

``experiment``   one YAML file, checked and frozen: what to run
``workload``     which requests come, when, how long; readers for every trace format
``deployment``   what vLLM would find out when it starts: limits, KV blocks, costs
``engine``       a table of sequences and the five verbs of a step; replicas on SimPy's clock
``policies``     how much to draft, decided anew at every step; one file each
``proposers``, ``acceptance``, ``latency``   who drafts, what survives, how long it takes
``simulate``     wires all of it together and runs it
``results``      records, metrics, files
``parity``       the same engine against recordings of the real vLLM scheduler

Import the public names from `specsim.api`; this file imports nothing, so that the command line
starts fast.
"""
