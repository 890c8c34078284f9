"""The engine: scheduler, KV cache, and the step loop on the event clock."""
