"""A small continuous-batching engine in PyTorch, driven by specsim's own scheduler.

What a simulation imagines, this one does: the schedule comes from the same class, and the wall
clock takes the place of the event clock. Weights are random, so that nothing has to be downloaded;
the shape of the model is real. Steps are scheduled one after the other, and each sequence has a row
of its own in the KV cache: blocks are counted by the scheduler, and no prefix is shared.

On a CPU one sequence attends after the other, on CUDA all at once, in bfloat16. Every phase ends
with its tokens on the host, so that the host's clock has timed the GPU's work as well. CUDA has not
been run yet, and there are no CUDA graphs: small batches will be slower there than they need be.
"""
