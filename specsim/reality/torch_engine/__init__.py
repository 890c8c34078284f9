"""A small continuous-batching engine in PyTorch, driven by specsim's own scheduler.

The schedule comes from the same class as a simulation's, with the wall clock in place of the event
clock. Weights are random, so that nothing is downloaded; the shape of the model is real. Steps are
scheduled one after another, and each sequence has a row in the KV cache: the scheduler counts
blocks, and no prefix is shared.

On a CPU attention runs sequence by sequence. On CUDA, in bfloat16, one kernel handles all
sequences, and passes with sequences of equal lengths are recorded as CUDA graphs; both are checked
when the engine is built, and not used if wrong or slower. None of that has run on a GPU yet; what
can be tested without one is tested.
"""
