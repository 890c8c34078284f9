"""A small continuous-batching engine in PyTorch, driven by specsim's own scheduler.

The schedule comes from the same class as a simulation's, and the wall clock takes the place of the
event clock. Weights are random, so that nothing has to be downloaded; the shape of the model is
real. Steps are scheduled one after the other, and each sequence has a row of its own in the KV
cache: blocks are counted by the scheduler, and no prefix is shared.

On a CPU one sequence attends after the other. On CUDA, in bfloat16, one kernel attends to all, and
passes whose sequences are all alike are recorded as CUDA graphs; both check themselves when the
engine is built, and what is wrong or no faster is not used. None of that has run on a GPU yet: what
can be tested without one is.
"""
