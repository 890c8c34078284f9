"""Tables on the terminal, one module per subject."""
