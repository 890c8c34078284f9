"""A small continuous-batching engine in PyTorch, driven by specsim's own scheduler.

What a simulation imagines, this one does: the schedule comes from the same class, and the wall
clock takes the place of the event clock. Weights are random, so that nothing has to be downloaded;
the shape of the model is real.
"""
