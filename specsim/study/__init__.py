"""Study: many runs, to answer one question."""
