"""Results: records of a run, and what is computed and written from them."""
