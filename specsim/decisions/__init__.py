"""What policies see of a server and may answer; the room `policies` is of those that do."""
