"""Plots, one module per subject; all of them are saved by `specsim.show.plots.figures`."""
