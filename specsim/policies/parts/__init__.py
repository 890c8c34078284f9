"""What policies share: loops, and the records that they work on."""
